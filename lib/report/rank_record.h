// A RankRecord as text and back, to be sent between ranks; the text is the JSON object that the summary has of it.
#pragma once

#include <string>

#include "report/metrics.h"

namespace spillway {

std::string to_text(const RankRecord& record);
RankRecord rank_record_of(const std::string& text);

}  // namespace spillway
