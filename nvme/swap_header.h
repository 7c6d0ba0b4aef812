// What stands at the start of a path's file: whose it is and where each extent lies. Never needed to find anything, it
// tells what happened when a checksum does not match: another run's file, or the right one with wrong bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "spillway/swap_store.h"

namespace spillway {

struct SwapIdentity {
  std::uint64_t run = 0;         // drawn at random by each process
  std::int64_t generation = 0;   // of the stores this process has made, from 1
  std::int64_t path_index = 0;
  std::int64_t paths = 1;
  std::string contents;

  bool operator==(const SwapIdentity&) const = default;
};

// Of this process, at its next store.
SwapIdentity next_swap_identity(std::string contents, int paths);

// "run 0123456789abcdef, store 1, path 1 of 2, rank 0 of 1"
std::string text_of(const SwapIdentity& identity);

struct PlacedExtent {
  std::string name;
  std::int64_t offset;
  std::int64_t bytes;
};

// Bytes of a row of the table.
std::int64_t swap_table_row_bytes(const std::string& name);

// Bytes of a header but for its table.
std::int64_t swap_header_base(const SwapIdentity& identity);

// As it is on disk, whole pages.
std::vector<std::byte> encode_swap_header(const SwapIdentity& identity, std::span<const PlacedExtent> table);

// From the first page, which holds the identity; nothing if it is not the first page of such a file.
std::optional<SwapIdentity> decode_swap_identity(std::span<const std::byte> page);

}  // namespace spillway
