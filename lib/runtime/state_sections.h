// What is kept of a parameter, section by section, for each optimizer, and the form in which its values are hashed and
// saved.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/state_io.h"
#include "spillway/dtype.h"
#include "spillway/optimizer.h"

namespace spillway {

// `weight` alone of a frozen parameter; else the master and the moments of the kind, in their order.
std::span<const StateSection> sections_of(OptimizerKind kind, bool frozen);

constexpr bool is_moment(StateSection section) { return section != StateSection::master && section != StateSection::weight; }

// Index into StateLayout::moments; -1 if the kind has no such moment.
int moment_of(OptimizerKind kind, StateSection section);

// The type values are hashed and saved in, which is exact: moments in blocks of 8 bits as f32, since what another world
// or another set of frozen parameters makes blocks of is not known.
constexpr DType dtype_of(StateSection section, DType model_dtype, MomentFormat moments) {
  if (section == StateSection::weight) return model_dtype;
  return is_moment(section) && moments == MomentFormat::bf16 ? DType::bf16 : DType::f32;
}

// The values of one section of a snapshot item in that form.
class SectionValues {
 public:
  // `bytes`: SnapshotItem::bytes() of them, borrowed, as the item is.
  SectionValues(const SnapshotItem& item, StateSection section, DType model_dtype, std::span<const std::byte> bytes);

  // Of elements [first, ...) of the item: one at least, and at most n. Valid until the next call.
  std::span<const std::byte> from(std::int64_t first, std::int64_t n);

  DType dtype() const { return dtype_; }

 private:
  static constexpr std::int64_t kDecodedElements = 4096;  // at a time; whole blocks

  const StateLayout& layout_;
  DType dtype_;
  std::span<const std::byte> values_;                 // as they lie in the item
  const std::uint8_t* scales_ = nullptr;              // block8 only
  MomentLaw law_{};
  alignas(64) std::array<float, kDecodedElements> decoded_;
};

}  // namespace spillway
