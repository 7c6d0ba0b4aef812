// Made-up training state for the tests of checkpoints: every value is a function of the parameter's name, the section
// and the index, so that whatever comes back can be told right or wrong wherever it was.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/writer.h"
#include "support/aligned_buffer.h"

namespace spillway::testing {

// A master weight that is not what it would be.
struct OddValue {
  std::string param;
  std::int64_t index = 0;
  float value = 0.0f;
};

struct MadeUpModel {
  ModelSpec spec;
  DType dtype = DType::bf16;
  StateFormat state;
  std::vector<checkpoint::TensorInfo> tensors;
  std::uint64_t seed = 1;  // another seed, other values
  OddValue odd;

  float value(const std::string& param, StateSection section, std::int64_t index) const;
};

// Parameters of 1 to 17 elements, one past the largest piece, and frozen ones.
MadeUpModel odd_model();

// The tensors of a real, tiny spec, those whose names contain `frozen` frozen.
MadeUpModel tiny_gpt2(const std::string& frozen = "none");

// What a rank saves: its contiguous share of every group of tensors that are alike trained or frozen, in tiles.
std::vector<SnapshotItem> items_of(const MadeUpModel& model, int rank, int world, std::int64_t tile_elements);

void fill_item(const MadeUpModel& model, const SnapshotItem& item, std::span<std::byte> bytes);

checkpoint::RunState run_at(std::int64_t step);

struct SaveSettings {
  int world = 1;
  int slots = 2;
  int keep = 0;
  std::int64_t tile_elements = 1000;
};

// A writer with memory of its own.
struct RankWriter {
  RankWriter(const std::string& root, const MadeUpModel& model, const SaveSettings& settings,
             std::unique_ptr<Communicator> communicator);

  checkpoint::SaveResult save(const checkpoint::RunState& run);

  const MadeUpModel& model;
  std::vector<SnapshotItem> items;
  AlignedBuffer staging;
  checkpoint::Writer writer;
};

// Saves once in a world of its own; every rank's result is checked to be the same.
checkpoint::SaveResult save_once(const std::string& root, const MadeUpModel& model, std::int64_t step, const SaveSettings& settings = {});

// Reads every value of every section back, in ranges of `stride`; returns how many are wrong.
std::int64_t wrong_values(StateSource& source, const MadeUpModel& model, std::int64_t stride);

}  // namespace spillway::testing
