#include "runtime/state_sections.h"

#include <algorithm>
#include <cassert>

namespace spillway {

std::string_view name_of(StateSection section) {
  switch (section) {
    case StateSection::master: return "master";
    case StateSection::exp_avg: return "exp_avg";
    case StateSection::exp_avg_sq: return "exp_avg_sq";
    case StateSection::sum: return "sum";
    case StateSection::momentum_buffer: return "momentum_buffer";
    case StateSection::weight: return "weight";
  }
  return "?";
}

std::span<const StateSection> sections_of(OptimizerKind kind, bool frozen) {
  using enum StateSection;
  static constexpr std::array of_frozen = {weight};
  static constexpr std::array adam = {master, exp_avg, exp_avg_sq};
  static constexpr std::array adagrad = {master, sum};
  static constexpr std::array lion = {master, exp_avg};
  static constexpr std::array sgd = {master};
  static constexpr std::array sgd_momentum = {master, momentum_buffer};
  if (frozen) return of_frozen;
  switch (kind) {
    case OptimizerKind::adam: return adam;
    case OptimizerKind::adagrad: return adagrad;
    case OptimizerKind::lion: return lion;
    case OptimizerKind::sgd: return sgd;
    case OptimizerKind::sgd_momentum: return sgd_momentum;
  }
  return {};
}

int moment_of(OptimizerKind kind, StateSection section) {
  const std::span<const StateSection> moments = sections_of(kind, false).subspan(1);
  const auto found = std::ranges::find(moments, section);
  return found == moments.end() ? -1 : static_cast<int>(found - moments.begin());
}

SectionValues::SectionValues(const SnapshotItem& item, StateSection section, DType model_dtype, std::span<const std::byte> bytes)
    : layout_(item.layout), dtype_(dtype_of(section, model_dtype, item.layout.format.moments)), values_(bytes) {
  if (!is_moment(section)) return;  // the first section
  const int moment = moment_of(layout_.format.kind, section);
  assert(moment >= 0);
  const auto m = static_cast<std::size_t>(moment);
  values_ = bytes.subspan(static_cast<std::size_t>(layout_.moments[m]));
  if (layout_.format.moments != MomentFormat::block8) return;
  scales_ = reinterpret_cast<const std::uint8_t*>(bytes.data() + layout_.scales[m]);
  law_ = traits_of(layout_.format.kind).moments[m].law;
}

std::span<const std::byte> SectionValues::from(std::int64_t first, std::int64_t n) {
  assert(0 <= first && first < layout_.n && n > 0);
  n = std::min(n, layout_.n - first);
  if (scales_ == nullptr) {
    const std::int64_t width = size_of(dtype_);
    return values_.subspan(static_cast<std::size_t>(first * width), static_cast<std::size_t>(n * width));
  }
  const std::int64_t block = first / kMomentBlock, begin = block * kMomentBlock;
  const std::int64_t count = std::min(kDecodedElements, layout_.n - begin);
  const auto decoded = std::span(decoded_).first(static_cast<std::size_t>(count));
  decode_moments(MomentFormat::block8, law_, values_.data() + begin, scales_ + block, decoded);
  const auto skipped = static_cast<std::size_t>(first - begin);
  return std::as_bytes(decoded.subspan(skipped, std::min(static_cast<std::size_t>(n), decoded.size() - skipped)));
}

}  // namespace spillway
