// In what two checkpoints differ: fields, and tensors value by value.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "base/state_format.h"
#include "checkpoint/inspect.h"

namespace spillway::checkpoint {

namespace {

SectionDifference compare_section(Reader& first, Reader& second, const TensorEntry& tensor, StateSection section) {
  constexpr std::int64_t kElements = kMaxPieceElements / 4;
  std::vector<float> a(static_cast<std::size_t>(std::min(kElements, tensor.num_elements()))), b(a.size());
  SectionDifference difference{.section = section};
  for (std::int64_t begin = 0; begin < tensor.num_elements(); begin += kElements) {
    const auto count = static_cast<std::size_t>(std::min(kElements, tensor.num_elements() - begin));
    first.read(tensor.name, section, begin, std::span(a).first(count));
    second.read(tensor.name, section, begin, std::span(b).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      if (std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i])) continue;
      ++difference.differing;
      const double distance = std::abs(double{a[i]} - double{b[i]});
      difference.largest = std::max(difference.largest, std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance);
    }
  }
  return difference;
}

TensorDifference compare_tensor(Reader& first, Reader& second, const TensorEntry& a, const TensorEntry& b) {
  TensorDifference difference{.name = a.name, .why_not_compared = {}, .sections = {}};
  if (a.shape != b.shape) {
    difference.why_not_compared = fmt::format("has shape ({}) in one and ({}) in the other", fmt::join(a.shape, ", "), fmt::join(b.shape, ", "));
    return difference;
  }
  // Of a frozen tensor there are no moments to be compared with; its weight stands for it.
  const Manifest& of_first = first.manifest();
  const Manifest& of_second = second.manifest();
  for (const StateSection section : sections_of(of_first.state.kind, a.frozen || b.frozen)) {
    if (is_moment(section) && moment_of(of_second.state.kind, section) < 0) continue;  // there in one of the two only
    const auto s = static_cast<std::size_t>(section);
    const bool like_with_like = a.frozen == b.frozen && dtype_of(section, of_first.dtype, of_first.state.moments) ==
                                                            dtype_of(section, of_second.dtype, of_second.state.moments);
    if (like_with_like && a.hashes[s] == b.hashes[s]) continue;
    const SectionDifference found = compare_section(first, second, a, section);
    if (found.differing > 0) difference.sections.push_back(found);
  }
  return difference;
}

}  // namespace

CheckpointDifference compare(Reader& first, Reader& second) {
  CheckpointDifference difference;
  difference.model = differences(first.manifest().model, second.manifest().model);
  difference.run = differences(first.manifest().run, second.manifest().run);
  if (first.manifest().dtype != second.manifest().dtype) {
    difference.model.push_back({"dtype", std::string(name_of(first.manifest().dtype)), std::string(name_of(second.manifest().dtype))});
  }
  if (first.manifest().state != second.manifest().state) {
    difference.run.push_back({"optimizer", text_of(first.manifest().state), text_of(second.manifest().state)});
  }
  std::map<std::string_view, const TensorEntry*> others;
  for (const TensorEntry& tensor : second.manifest().tensors) others.emplace(tensor.name, &tensor);
  for (const TensorEntry& tensor : first.manifest().tensors) {
    const auto other = others.find(tensor.name);
    if (other == others.end()) {
      difference.tensors.push_back({tensor.name, "is in the first only", {}});
      continue;
    }
    TensorDifference found = compare_tensor(first, second, tensor, *other->second);
    others.erase(other);
    if (found.sections.empty() && found.why_not_compared.empty()) {
      ++difference.equal_tensors;
    } else {
      difference.tensors.push_back(std::move(found));
    }
  }
  for (const auto& [name, tensor] : others) difference.tensors.push_back({tensor->name, "is in the second only", {}});
  return difference;
}

std::string to_text(const CheckpointDifference& difference) {
  std::string text;
  for (const auto* fields : {&difference.model, &difference.run}) {
    for (const FieldDifference& field : *fields) text += fmt::format("{}: {} | {}\n", field.field, field.first, field.second);
  }
  for (const TensorDifference& tensor : difference.tensors) {
    if (!tensor.why_not_compared.empty()) text += fmt::format("{} {}\n", tensor.name, tensor.why_not_compared);
    for (const SectionDifference& section : tensor.sections) {
      text += fmt::format("{} {}: {} elements differ, by at most {:.6g}\n", tensor.name, name_of(section.section), section.differing,
                          section.largest);
    }
  }
  text += fmt::format("{} tensors are equal, {} differ\n", difference.equal_tensors, difference.tensors.size());
  return text;
}

}  // namespace spillway::checkpoint
