// The system calls that checkpoints are read and made durable with; every failure is an IoError that names the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace spillway::checkpoint {

// An open file or folder; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Returns the errno of closing, or 0: some file systems report a failed write only then.
  int close();

 private:
  int fd_;
};

// "[checkpoint] ATTEMPT PATH: No space left on device; what to do"
[[noreturn]] void throw_system_error(std::string_view attempt, const std::string& path, int error);

Descriptor create_file(const std::string& path);            // for writing; it must not exist
Descriptor create_unnamed_file(const std::string& folder);  // see base/unnamed_file.h
Descriptor open_for_reading(const std::string& path);  // a regular file
std::int64_t size_of_file(const Descriptor& file, const std::string& path);

// Fills `out`; a file that ends before is an error.
void read_at(const Descriptor& file, std::int64_t offset, std::span<std::byte> out, const std::string& path);

// Has the system fetch bytes that will be read soon; whether it does is up to it.
void read_ahead(const Descriptor& file, std::int64_t offset, std::int64_t bytes);

std::string read_text(const std::string& path);

// Takes space for a file that is being written. A file system that cannot says so when it is full.
void reserve_space(const Descriptor& file, std::int64_t bytes, const std::string& path);

// Creates a file that must not exist, and takes the space for what write_durably() will put there.
void reserve_file(const std::string& path, std::int64_t bytes);

// Returns when the text is the file's whole content on disk.
void write_durably(const std::string& path, std::string_view text);

// Returns when the folder's list of names is on disk.
void sync_folder(const std::string& path);

std::int64_t free_bytes_under(const std::string& folder);

// Throws IoError, saying what was attempted, if fewer bytes are free under `folder`.
void require_space(const std::string& attempt, const std::string& folder, std::int64_t bytes);

std::string parent_of(const std::string& path);
std::string name_in_parent(const std::string& path);

// Sixteen hexadecimal digits that no other process and no other call comes up with.
std::string unique_suffix();

}  // namespace spillway::checkpoint
