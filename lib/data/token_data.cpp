#include "data/token_data.h"

#include <algorithm>

#include <fmt/format.h>

#include "spillway/error.h"

namespace spillway {

TokenData::TokenData(const std::vector<std::string>& paths, std::int64_t vocabulary) {
  if (paths.empty()) throw DataError("[data] open training data: no file is named; name at least one");
  files_.reserve(paths.size());
  std::int64_t end = 0;
  for (const std::string& path : paths) {
    files_.emplace_back(path, vocabulary);
    ends_.push_back(end += files_.back().size());
  }
}

std::string TokenData::description() const {
  const std::string& first = files_.front().path();
  return files_.size() == 1 ? fmt::format("'{}'", first)
                            : fmt::format("'{}' and {} more", first, files_.size() - 1);
}

void TokenData::read(std::int64_t first, std::span<std::int32_t> out) const {
  auto file = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin());
  while (!out.empty()) {
    const std::int64_t here = std::min(ends_[file] - first, static_cast<std::int64_t>(out.size()));
    files_[file].read(first - (ends_[file] - files_[file].size()), out.first(static_cast<std::size_t>(here)));
    out = out.subspan(static_cast<std::size_t>(here));
    first += here;
    ++file;
  }
}

}  // namespace spillway
