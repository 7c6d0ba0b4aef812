// One file of training data, mapped read-only, whatever its format.
//
// | name            | content                                                                          |
// |-----------------|----------------------------------------------------------------------------------|
// | ends in `.bin`  | uint16 little-endian tokens as nanoGPT writes them (no header), or llm.c's: 256   |
// |                 | int32 (magic 20240520, version 1, number of tokens, zeros), then the tokens       |
// | anything else   | byte text: each byte is a token, 0 to 255                                         |
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace spillway {

// Immutable after construction and thread-safe. The file must not be shortened while it is mapped: the
// kernel answers a read behind the new end with SIGBUS.
class TokenFile {
 public:
  // Maps `path` and checks all of it once, so that nothing can go wrong in the middle of a run: a file whose
  // tokens may reach `vocabulary` is read through (in parallel). Throws DataError that names the file and, as
  // the case may be, the reason of the system, what the content looks like, both sizes of a truncated file, or
  // the first token that is too large and where it is.
  TokenFile(const std::string& path, std::int64_t vocabulary);
  ~TokenFile();
  TokenFile(TokenFile&& other) noexcept;
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  TokenFile& operator=(TokenFile&&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }  // tokens

  // Copies tokens [first, first + out.size()), which lie within the file.
  void read(std::int64_t first, std::span<std::int32_t> out) const;

 private:
  void map();
  void locate_tokens();
  void locate_header_tokens(std::int64_t header_bytes);
  void check_vocabulary(std::int64_t vocabulary) const;

  std::string path_;
  std::span<const std::byte> mapping_;  // the whole file
  const std::byte* tokens_ = nullptr;   // within mapping_
  std::int64_t size_ = 0;
  std::int64_t token_bytes_ = 1;  // 1: byte text, 2: uint16
};

}  // namespace spillway
