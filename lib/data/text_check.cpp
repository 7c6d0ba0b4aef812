#include "data/text_check.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

namespace spillway {

namespace {

using namespace std::string_view_literals;

struct Signature {
  std::string_view bytes;  // at the start of the file
  std::string_view what;
  std::string_view advice;
};

constexpr std::string_view kUnpack = "unpack it first";
constexpr std::string_view kConvert = "extract its text first";
constexpr std::string_view kRecode = "convert it to UTF-8 first";

constexpr Signature kSignatures[] = {
    {"\x7f\x45LF"sv, "a program (ELF)", "name a text file"},
    {"\x1f\x8b"sv, "gzip data", kUnpack},
    {"PK\x03\x04"sv, "a zip archive", kUnpack},
    {"\x28\xb5\x2f\xfd"sv, "zstd data", kUnpack},
    {"\xfd\x37zXZ"sv, "xz data", kUnpack},
    {"BZh"sv, "bzip2 data", kUnpack},
    {"%PDF-"sv, "a PDF document", kConvert},
    {"\x89PNG"sv, "a PNG picture", "name a text file"},
    {"\xff\xfe"sv, "UTF-16 or UTF-32 text", kRecode},
    {"\xfe\xff"sv, "UTF-16 text", kRecode},
    {"\x88\xd8\x34\x01"sv, "an llm.c token file", "give it a name that ends in .bin"},
    {"\x93NUMPY"sv, "a NumPy array", "write its uint16 tokens without a header to a file that ends in .bin"},
};

constexpr std::size_t kLooked = 64 * 1024;

}  // namespace

std::string why_not_text(std::span<const std::byte> bytes) {
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kLooked));
  for (const Signature& signature : kSignatures) {
    if (head.starts_with(signature.bytes)) {
      return fmt::format("looks like {}, not text; {}", signature.what, signature.advice);
    }
  }
  const std::size_t nul = head.find('\0');
  if (nul != std::string_view::npos) {
    return fmt::format(
        "is binary, not text (a NUL byte at offset {}); uint16 tokens belong in a file that ends in .bin", nul);
  }
  return {};
}

}  // namespace spillway
