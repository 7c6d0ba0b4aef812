// Reads the fixtures that tests/fixtures/make_*.py write: records of one text line "NAME TYPE DIM DIM ..."
// followed by the row-major little-endian data, TYPE being f32 or i32.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace spillway::test {

class Fixture {
 public:
  explicit Fixture(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    for (std::string line; std::getline(in, line);) {
      std::istringstream header(line);
      std::string name, type;
      std::size_t count = 1;
      header >> name >> type;
      for (std::size_t extent; header >> extent;) count *= extent;
      if (type == "f32") read(in, floats_[name], count);
      else if (type == "i32") read(in, ints_[name], count);
      else throw std::runtime_error(file + ": record " + name + " has type " + type);
    }
    if (floats_.empty()) throw std::runtime_error(file + ": cannot be read or holds nothing");
  }

  const std::vector<float>& floats(const std::string& name) const { return floats_.at(name); }
  const std::vector<std::int32_t>& ints(const std::string& name) const { return ints_.at(name); }

 private:
  template <class T>
  static void read(std::istream& in, std::vector<T>& out, std::size_t count) {
    out.resize(count);
    in.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(count * sizeof(T)));
    if (!in) throw std::runtime_error("a fixture is truncated");
  }

  std::map<std::string, std::vector<float>> floats_;
  std::map<std::string, std::vector<std::int32_t>> ints_;
};

}  // namespace spillway::test
