// What is inside a checkpoint, whether all of it is as it was written, and in what two of them differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/differences.h"
#include "checkpoint/reader.h"

namespace spillway::checkpoint {

// Model, state of the run, sizes and the table of tensors, as text. Reads no data.
std::string describe(const Reader& reader);

struct Verification {
  std::int64_t bytes = 0;             // read
  std::vector<std::string> problems;  // one sentence each

  bool ok() const { return problems.empty(); }
};

// Reads all data: every piece against its checksum, every section of every tensor against its hash. Goes on past what is
// wrong.
Verification verify(Reader& reader);

// How a section of a tensor differs.
struct SectionDifference {
  StateSection section;
  std::int64_t differing = 0;  // elements whose bits differ
  double largest = 0.0;        // difference; infinity where one of the two is not a number
};

struct TensorDifference {
  std::string name;
  std::string why_not_compared;             // there in one of the two only, or of another shape; empty: compared
  std::vector<SectionDifference> sections;  // those that differ
};

struct CheckpointDifference {
  std::vector<FieldDifference> model;
  std::vector<FieldDifference> run;
  std::vector<TensorDifference> tensors;  // those that differ
  std::int64_t equal_tensors = 0;

  bool equal() const { return model.empty() && run.empty() && tensors.empty(); }
};

// Reads the data of those tensors whose hashes differ, piece by piece. Where only one of the two has trained a tensor, its
// weights are compared.
CheckpointDifference compare(Reader& first, Reader& second);

std::string to_text(const CheckpointDifference& difference);

}  // namespace spillway::checkpoint
