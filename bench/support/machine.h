// What a result was measured on, and the statistic it is given by.
#pragma once

#include <string>
#include <vector>

namespace spillway::bench {

// {"cpu": ..., "cores": ..., "kernel": ..., "load": ...} of this machine now.
std::string machine_json();

double median(std::vector<double> values);

}  // namespace spillway::bench
