#include "swap_header.h"

#include <atomic>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "base/hash.h"
#include "page_memory.h"

namespace spillway {

namespace {

constexpr std::uint64_t kMagic = 0x31304c4c49505357;  // "WSPILL01" in a dump
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kMaxContents = 1024;  // so that the identity lies within a page

struct FixedPart {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t contents_bytes;
  std::uint64_t run;
  std::int64_t generation, path_index, paths;
  std::int64_t table_rows;
};

struct FixedRow {
  std::int64_t offset, bytes;
  std::uint64_t name_bytes;
};

template <class T>
void append(std::vector<std::byte>& out, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

void append(std::vector<std::byte>& out, const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  out.insert(out.end(), bytes, bytes + text.size());
}

std::uint64_t draw_run() {
  std::random_device random;
  return static_cast<std::uint64_t>(random()) << 32 | random();
}

}  // namespace

SwapIdentity next_swap_identity(std::string contents, int paths) {
  static const std::uint64_t run = draw_run();
  static std::atomic<std::int64_t> stores{0};
  if (contents.size() > kMaxContents) contents.resize(kMaxContents);
  return {run, ++stores, 0, paths, std::move(contents)};
}

std::string text_of(const SwapIdentity& identity) {
  return fmt::format("run {}, store {}, path {} of {}{}{}", hex64(identity.run), identity.generation, identity.path_index + 1,
                     identity.paths, identity.contents.empty() ? "" : ", ", identity.contents);
}

std::int64_t swap_table_row_bytes(const std::string& name) { return static_cast<std::int64_t>(sizeof(FixedRow) + name.size()); }

std::int64_t swap_header_base(const SwapIdentity& identity) { return static_cast<std::int64_t>(sizeof(FixedPart) + identity.contents.size()); }

std::vector<std::byte> encode_swap_header(const SwapIdentity& identity, std::span<const PlacedExtent> table) {
  std::vector<std::byte> out;
  append(out, FixedPart{kMagic, kVersion, static_cast<std::uint32_t>(identity.contents.size()), identity.run, identity.generation,
                        identity.path_index, identity.paths, static_cast<std::int64_t>(table.size())});
  append(out, identity.contents);
  for (const PlacedExtent& extent : table) {
    append(out, FixedRow{extent.offset, extent.bytes, extent.name.size()});
    append(out, extent.name);
  }
  out.resize(static_cast<std::size_t>(whole_pages(static_cast<std::int64_t>(out.size()))));
  return out;
}

std::optional<SwapIdentity> decode_swap_identity(std::span<const std::byte> page) {
  FixedPart part;
  if (page.size() < sizeof part) return std::nullopt;
  std::memcpy(&part, page.data(), sizeof part);
  if (part.magic != kMagic || part.version != kVersion || part.contents_bytes > page.size() - sizeof part) return std::nullopt;
  return SwapIdentity{part.run, part.generation, part.path_index, part.paths,
                      std::string(reinterpret_cast<const char*>(page.data() + sizeof part), part.contents_bytes)};
}

}  // namespace spillway
