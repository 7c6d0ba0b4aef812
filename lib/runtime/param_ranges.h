// Which parameters a stretch of a layer's flat buffer is made of.
#pragma once

#include <algorithm>
#include <cstdint>

#include "spillway/model.h"

namespace spillway {

// Calls visit(param, first element within the param, range within the stretch) for each parameter the stretch holds
// a part of, in flat order.
template <class Visit>
void for_each_param(const Layer& layer, ElementRange stretch, Visit visit) {
  for (const ParamSpec& param : layer.params()) {
    const std::int64_t begin = std::max(stretch.begin, param.offset);
    const std::int64_t end = std::min(stretch.end, param.offset + param.num_elements);
    if (begin < end) visit(param, begin - param.offset, ElementRange{begin - stretch.begin, end - stretch.begin});
  }
}

}  // namespace spillway
