#include "support/machine.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <sys/utsname.h>

#include "base/parallel.h"

namespace spillway::bench {

namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

std::string machine_json() {
  utsname system{};
  uname(&system);
  double load = 0.0;
  getloadavg(&load, 1);
  return fmt::format(R"({{"cpu": "{}", "cores": {}, "kernel": "{}", "load": {:.2f}}})", cpu_model(), available_cores(), system.release, load);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2.0;
}

}  // namespace spillway::bench
