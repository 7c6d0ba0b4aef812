#include "config/source.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include <fmt/format.h>

#include "spillway/error.h"

namespace spillway::config {

namespace {

constexpr std::size_t kLargestFile = std::size_t{16} << 20;

std::string read_bytes(const std::string& file, std::string_view kind) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "rb"), &std::fclose);
  const auto fail = [&](int error) {
    throw ConfigError(fmt::format("cannot read {} file {}: {}", kind, file,
                                  std::generic_category().message(error)));
  };
  if (!stream) fail(errno);
  std::string text;
  std::array<char, 1 << 16> piece;
  while (const std::size_t count = std::fread(piece.data(), 1, piece.size(), stream.get())) {
    text.append(piece.data(), count);
    if (text.size() > kLargestFile) {
      throw ConfigError(fmt::format("{}: more than {} MiB, which is no {} file", file, kLargestFile >> 20, kind));
    }
  }
  if (std::ferror(stream.get()) != 0) fail(errno);
  return text;
}

}  // namespace

std::string read_text(const std::string& file, std::string_view kind) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    throw ConfigError(fmt::format("cannot read {} file {}: it is a folder; name the JSON file in it", kind, file));
  }
  std::string text = read_bytes(file, kind);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw ConfigError(fmt::format("{}: the {} file is empty; it has to hold a JSON object", file, kind));
  }
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte >= 0x20 || byte == '\n' || byte == '\r' || byte == '\t') continue;
    const bool utf16 = text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
    throw ConfigError(fmt::format("{}: not a text file: byte 0x{:02x} at offset {}{}", file, byte, at,
                                  utf16 ? "; it looks like UTF-16: save it as UTF-8" : ""));
  }
  return text;
}

}  // namespace spillway::config
