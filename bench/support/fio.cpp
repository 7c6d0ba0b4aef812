#include "support/fio.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "spillway/error.h"

namespace spillway::bench {

namespace {

// Places in the semicolon-separated line of --output-format=terse, version 3 (fio's HOWTO, "Terse output").
constexpr std::size_t kError = 4, kReadKibPerS = 6, kWriteKibPerS = 47;

std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw IoError("[bench] start fio: popen failed");
  std::string output;
  for (char part[4096]; const std::size_t n = fread(part, 1, sizeof part, pipe);) output.append(part, n);
  const int status = pclose(pipe);
  if (status != 0) throw IoError(fmt::format("[bench] run fio: status {}; is it installed? Command: {}", status, command));
  return output;
}

}  // namespace

Fio::Fio(const std::string& folder, long long bytes) : file_(folder + "/fio.dat"), bytes_(bytes) {}

Fio::~Fio() {
  std::error_code ignored;
  std::filesystem::remove(file_, ignored);
}

double Fio::mixed_rate(double seconds) {
  const std::string output = output_of(fmt::format(
      "fio --name=mixed --filename='{}' --size={} --rw=rw --rwmixread=50 --direct=1 --ioengine=io_uring --bs=1m --iodepth=32 "
      "--runtime={}ms --time_based --invalidate=0 --output-format=terse --terse-version=3",
      file_, bytes_, static_cast<long long>(seconds * 1e3)));
  std::vector<std::string> fields;
  std::istringstream line(output.substr(output.find("3;")));
  for (std::string field; std::getline(line, field, ';');) fields.push_back(field);
  if (fields.size() <= kWriteKibPerS || fields[kError] != "0") throw IoError("[bench] run fio: it answered: " + output);
  return (std::stod(fields[kReadKibPerS]) + std::stod(fields[kWriteKibPerS])) * 1024.0;
}

}  // namespace spillway::bench
