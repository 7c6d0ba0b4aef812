// The hash of a whole training state, put together from parts: what the engine computes where the state lives, and what
// a checkpoint computes while it is written or verified, is the same number.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/state_sections.h"
#include "spillway/dtype.h"

namespace spillway {

// Hashes of a parameter by section; zero for a section it does not have. Those of its parts add up (modulo 2^64).
using SectionHashes = std::array<std::uint64_t, kStateSections>;

// Of elements begin, begin + 1, ... of a parameter's section: `bytes` are their values in `dtype`, aligned for it.
std::uint64_t section_hash(std::string_view param, StateSection section, DType dtype, std::int64_t begin,
                           std::span<const std::byte> bytes);

// The sum over all that an item holds. `bytes` are SnapshotItem::bytes().
std::uint64_t item_hash(const SnapshotItem& item, DType model_dtype, std::span<const std::byte> bytes);

// The hash of the state: `sum` is the sum of the hashes of all sections of all parameters, over all ranks.
std::uint64_t combine_state_hash(std::uint64_t sum, std::int64_t applied_steps);

}  // namespace spillway
