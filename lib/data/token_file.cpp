#include "data/token_file.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/parallel.h"
#include "data/text_check.h"
#include "spillway/error.h"

namespace spillway {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and mapped as they are");

namespace {

constexpr std::int32_t kLlmcMagic = 20240520;
constexpr std::int32_t kLlmcLlama3Magic = 20240801;  // the same header before uint32 tokens
constexpr std::int32_t kLlmcVersion = 1;
constexpr std::int64_t kLlmcHeaderBytes = 256 * 4;

// Files up to this size are made resident when they are opened, so that the process does not appear to grow
// while training visits them for the first time. Larger ones stay the page cache's business.
constexpr std::int64_t kResidentBytes = 64 * 1024 * 1024;

constexpr std::int64_t kScanPiece = 1024 * 1024;  // tokens of one parallel piece

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw DataError(fmt::format("[data] open '{}': {}", path, why));
}

std::string system_reason(int error) { return std::generic_category().message(error); }

class FileDescriptor {
 public:
  // O_NONBLOCK: opening a FIFO has to end in an error here, not wait for a writer.
  explicit FileDescriptor(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ >= 0) return;
    const int error = errno;
    fail(path, system_reason(error) + (error == ENOENT ? "; check the path given as data"
                                                       : "; check the path and its permissions"));
  }
  ~FileDescriptor() { ::close(fd_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int value() const { return fd_; }

 private:
  int fd_;
};

std::int32_t header_word(std::span<const std::byte> mapping, std::int64_t index) {
  std::int32_t word;
  std::memcpy(&word, mapping.data() + index * 4, sizeof word);
  return word;
}

// Index of the first of n tokens that is not below `vocabulary`, or n.
template <class Token>
std::int64_t first_too_large(const Token* tokens, std::int64_t n, std::int64_t vocabulary) {
  std::atomic<std::int64_t> first{n};
  parallel_for((n + kScanPiece - 1) / kScanPiece, [&](std::int64_t piece) {
    const Token* begin = tokens + piece * kScanPiece;
    const Token* end = tokens + std::min(n, (piece + 1) * kScanPiece);
    Token largest = 0;
    for (const Token* token = begin; token < end; ++token) largest = std::max(largest, *token);  // vectorises
    if (largest < vocabulary) return;
    const std::int64_t found =
        std::find_if(begin, end, [&](Token token) { return token >= vocabulary; }) - tokens;
    std::int64_t seen = first;
    while (found < seen && !first.compare_exchange_weak(seen, found)) {
    }
  });
  return first;
}

}  // namespace

TokenFile::TokenFile(const std::string& path, std::int64_t vocabulary) : path_(path) {
  map();
  try {
    locate_tokens();
    check_vocabulary(vocabulary);
  } catch (...) {
    ::munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
    throw;
  }
}

TokenFile::~TokenFile() {
  if (!mapping_.empty()) ::munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
}

TokenFile::TokenFile(TokenFile&& other) noexcept
    : path_(std::move(other.path_)),
      mapping_(std::exchange(other.mapping_, {})),
      tokens_(other.tokens_),
      size_(other.size_),
      token_bytes_(other.token_bytes_) {}

void TokenFile::map() {
  const FileDescriptor file(path_);
  struct stat status;
  if (::fstat(file.value(), &status) != 0) fail(path_, system_reason(errno));
  if (S_ISDIR(status.st_mode)) fail(path_, "is a directory; name the files in it");
  if (!S_ISREG(status.st_mode))
    fail(path_, "is not a regular file; training data is read in random order and cannot be a pipe");
  if (status.st_size == 0) fail(path_, "the file is empty");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.value(), 0);
  if (address == MAP_FAILED) fail(path_, fmt::format("cannot map {} bytes: {}", bytes, system_reason(errno)));
  mapping_ = {static_cast<const std::byte*>(address), bytes};
  // Advice only: where the kernel is too old for it, pages come on first use.
  if (status.st_size <= kResidentBytes) ::madvise(address, bytes, MADV_POPULATE_READ);
}

void TokenFile::locate_tokens() {
  const auto bytes = static_cast<std::int64_t>(mapping_.size());
  tokens_ = mapping_.data();
  if (!path_.ends_with(".bin")) {
    const std::string why = why_not_text(mapping_);
    if (!why.empty()) fail(path_, why);
    size_ = bytes;
    return;
  }
  token_bytes_ = 2;
  // Neither magic can be two GPT-2 tokens: their lower halves are above its vocabulary of 50257.
  const std::int32_t magic = bytes >= 4 ? header_word(mapping_, 0) : 0;
  if (magic == kLlmcLlama3Magic) {
    fail(path_,
         "is an llm.c file of uint32 (Llama 3) tokens; tokenise to uint16, for a vocabulary of at most 65536");
  }
  if (magic == kLlmcMagic) return locate_header_tokens(kLlmcHeaderBytes);
  if (bytes % 2 != 0) {
    fail(path_,
         fmt::format(
             "{} bytes are not a whole number of uint16 tokens; the file is truncated or not a token file",
             bytes));
  }
  size_ = bytes / 2;
}

void TokenFile::locate_header_tokens(std::int64_t header_bytes) {
  const auto bytes = static_cast<std::int64_t>(mapping_.size());
  if (bytes < header_bytes) {
    fail(path_, fmt::format("truncated: llm.c's header takes {} bytes, the file has {}; copy it again",
                            header_bytes, bytes));
  }
  const std::int32_t version = header_word(mapping_, 1);
  if (version != kLlmcVersion) {
    fail(path_, fmt::format("llm.c token file of version {}; only version {} is known", version, kLlmcVersion));
  }
  const std::int64_t count = header_word(mapping_, 2);
  const std::int64_t expected = header_bytes + 2 * count;
  if (count <= 0)
    fail(path_, fmt::format("the header promises {} tokens; the file is empty or damaged", count));
  if (bytes < expected) {
    fail(path_, fmt::format(
                    "truncated: the header promises {} tokens, {} bytes in all, the file has {}; copy it again",
                    count, expected, bytes));
  }
  if (bytes > expected) {
    fail(path_, fmt::format(
                    "the header promises {} tokens, {} bytes in all, but the file has {}; it is damaged or was "
                    "appended to",
                    count, expected, bytes));
  }
  tokens_ = mapping_.data() + header_bytes;
  size_ = count;
}

void TokenFile::check_vocabulary(std::int64_t vocabulary) const {
  const std::int64_t largest_possible =
      token_bytes_ == 1 ? std::numeric_limits<std::uint8_t>::max() : std::numeric_limits<std::uint16_t>::max();
  if (vocabulary > largest_possible) return;
  const std::int64_t offset =
      token_bytes_ == 1 ? first_too_large(reinterpret_cast<const std::uint8_t*>(tokens_), size_, vocabulary)
                        : first_too_large(reinterpret_cast<const std::uint16_t*>(tokens_), size_, vocabulary);
  if (offset == size_) return;
  std::int32_t token;
  read(offset, {&token, 1});
  fail(path_, fmt::format("token {} at offset {} (byte {}) is not below the model's vocabulary of {}; use a "
                          "model with a larger "
                          "vocabulary or data tokenised for this one",
                          token, offset, (tokens_ - mapping_.data()) + offset * token_bytes_, vocabulary));
}

void TokenFile::read(std::int64_t first, std::span<std::int32_t> out) const {
  const auto n = static_cast<std::int64_t>(out.size());
  if (token_bytes_ == 1) {
    std::copy_n(reinterpret_cast<const std::uint8_t*>(tokens_) + first, n, out.data());
  } else {
    std::copy_n(reinterpret_cast<const std::uint16_t*>(tokens_) + first, n, out.data());
  }
}

}  // namespace spillway
