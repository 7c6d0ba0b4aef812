#include "support/saved_run.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "base/hash.h"
#include "base/values.h"
#include "support/thread_ranks.h"

namespace spillway::testing {

using namespace spillway::checkpoint;

namespace {

std::int64_t item_size(const std::vector<SnapshotItem>& items) {
  std::int64_t largest = 4096;
  for (const SnapshotItem& item : items) largest = std::max(largest, item.bytes());
  return largest;
}

// Elements [begin, end) of tensors that follow each other, as an item.
SnapshotItem item_from(std::span<const TensorInfo> tensors, const MadeUpModel& model, std::int64_t begin, std::int64_t end) {
  SnapshotItem item{.frozen = tensors[0].frozen, .layout = {}, .ranges = {}};
  std::int64_t first = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::int64_t from = std::max(begin, first), to = std::min(end, first + tensor.num_elements());
    if (from < to) item.ranges.push_back({tensor.name, from - first, to - first});
    first += tensor.num_elements();
  }
  if (item.frozen) {
    item.layout.n = end - begin;
    item.layout.bytes = ((end - begin) * size_of(model.dtype) + 4095) / 4096 * 4096;
  } else {
    item.layout = state_layout(model.state, end - begin);
  }
  return item;
}

// Values are asked for one after the other, and a key costs more than a value.
std::uint64_t cached_key(const std::string& param, StateSection section) {
  thread_local std::string last_param;
  thread_local StateSection last_section{};
  thread_local std::uint64_t key = hash_key(last_param, name_of(last_section));
  if (param != last_param || section != last_section) {
    key = hash_key(param, name_of(section));
    last_param = param;
    last_section = section;
  }
  return key;
}

// Of the codes that need the same scale, whichever of them are together in a block.
float block8_value(StateSection section, std::uint64_t bits) {
  const bool sum_of_squares = section == StateSection::exp_avg_sq || section == StateSection::sum;
  const auto code = static_cast<std::int64_t>(bits >> 40) % (sum_of_squares ? 40 : 32) + (sum_of_squares ? 216 : 96);
  const auto square = static_cast<float>(code * code);
  if (sum_of_squares) return square * square * 0x1p-40f;
  return (bits & 1) != 0 ? -square * 0x1p-20f : square * 0x1p-20f;
}

}  // namespace

float MadeUpModel::value(const std::string& param, StateSection section, std::int64_t index) const {
  if (section == StateSection::master && index == odd.index && param == odd.param) return odd.value;
  const std::uint64_t key = cached_key(param, section) + seed;
  std::uint64_t bits = (key ^ static_cast<std::uint64_t>(index)) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 29)) * 0xbf58476d1ce4e5b9u;
  const float magnitude = static_cast<float>(bits >> 40) * 0x1p-24f;
  const float signed_value = (bits & 1) != 0 ? -magnitude : magnitude;
  if (is_moment(section) && state.moments == MomentFormat::block8) return block8_value(section, bits);
  if (is_moment(section) && state.moments == MomentFormat::bf16) {
    float rounded = signed_value;
    round_values(DType::bf16, {&rounded, 1});
    return rounded;
  }
  if (section != StateSection::weight) return signed_value;
  float stored = signed_value;
  round_values(dtype, {&stored, 1});
  return stored;
}

MadeUpModel odd_model() {
  MadeUpModel model;
  model.spec = model_preset("gpt2-tiny");
  for (std::int64_t size = 1; size <= 17; ++size) model.tensors.push_back({"small." + std::to_string(size), {size}, size % 5 == 0});
  model.tensors.push_back({"past.the.largest.piece", {kMaxPieceElements + 3}, false});
  model.tensors.push_back({"matrix", {31, 129}, false});
  model.tensors.push_back({"frozen.matrix", {33, 127}, true});
  return model;
}

MadeUpModel tiny_gpt2(const std::string& frozen) {
  MadeUpModel model;
  model.spec = {.name = "test", .layers = 2, .channels = 12, .heads = 3, .vocabulary = 51, .context = 16};
  for (const auto& layer : make_layers(model.spec)) {
    for (const ParamSpec& param : layer->params()) {
      model.tensors.push_back({param.name, param.shape, param.name.find(frozen) != std::string::npos});
    }
  }
  return model;
}

std::vector<SnapshotItem> items_of(const MadeUpModel& model, int rank, int world, std::int64_t tile_elements) {
  std::vector<SnapshotItem> items;
  const std::span<const TensorInfo> all(model.tensors);
  for (std::size_t first = 0, last = 0; first < all.size(); first = last) {
    std::int64_t elements = 0;
    for (last = first; last < all.size() && all[last].frozen == all[first].frozen; ++last) elements += all[last].num_elements();
    const std::int64_t share = (elements + world - 1) / world;
    const std::int64_t begin = std::min(elements, rank * share), end = std::min(elements, begin + share);
    for (std::int64_t at = begin; at < end; at += tile_elements) {
      items.push_back(item_from(all.subspan(first, last - first), model, at, std::min(end, at + tile_elements)));
    }
  }
  return items;
}

void fill_item(const MadeUpModel& model, const SnapshotItem& item, std::span<std::byte> bytes) {
  std::ranges::fill(bytes, std::byte{0xcd});  // what is between the sections must not matter
  for (const StateSection section : sections_of(model.state.kind, item.frozen)) {
    std::vector<float> values;
    for (const StateRange& range : item.ranges) {
      for (std::int64_t i = range.begin; i < range.end; ++i) values.push_back(model.value(range.param, section, i));
    }
    if (!is_moment(section)) {
      narrow(section == StateSection::weight ? model.dtype : DType::f32, values, bytes);
      continue;
    }
    const auto m = static_cast<std::size_t>(moment_of(model.state.kind, section));
    encode_moments(model.state.moments, traits_of(model.state.kind).moments[m].law, values, bytes.data() + item.layout.moments[m],
                   reinterpret_cast<std::uint8_t*>(bytes.data() + item.layout.scales[m]));
  }
}

RunState run_at(std::int64_t step) {
  RunState run;
  run.step = step;
  run.applied_steps = step > 0 ? step - 1 : 0;
  run.skipped_steps = step > 0 ? 1 : 0;
  run.loss_scaler = {.scale = 0x1p100, .updates = step, .last_overflow = -1, .hysteresis_left = 2};
  run.seed = 0xfedcba9876543210;
  run.cursor = {.epoch = 3, .position = (std::int64_t{1} << 62) + 1};
  run.global_batch = 8;
  run.sequence_length = 16;
  run.data = "text 'x\xff'";  // a path that is not UTF-8
  run.config_json = "{\"train_batch_size\": 8}";
  run.world_size = 4;
  run.zero_stage = 3;
  run.spillway_version = "test";
  return run;
}

RankWriter::RankWriter(const std::string& root, const MadeUpModel& of_model, const SaveSettings& settings,
                       std::unique_ptr<Communicator> communicator)
    : model(of_model),
      items(items_of(of_model, communicator->rank(), settings.world, settings.tile_elements)),
      staging(item_size(items) * settings.slots),
      writer({root, model.spec, model.dtype, model.state, model.tensors, settings.keep}, std::move(communicator), items, staging.span()) {}

SaveResult RankWriter::save(const RunState& run) {
  writer.begin(run);
  for (std::size_t item = 0; item < items.size(); ++item) {
    fill_item(model, items[item], writer.acquire(item));
    writer.submit(item);
  }
  return writer.finish();
}

SaveResult save_once(const std::string& root, const MadeUpModel& model, std::int64_t step, const SaveSettings& settings) {
  std::vector<SaveResult> results(static_cast<std::size_t>(settings.world));
  run_ranks(settings.world, [&](std::unique_ptr<Communicator> communicator) {
    const auto rank = static_cast<std::size_t>(communicator->rank());
    results[rank] = RankWriter(root, model, settings, std::move(communicator)).save(run_at(step));
  });
  for (const SaveResult& result : results) {
    if (result.error != results[0].error || result.folder != results[0].folder || result.state_hash != results[0].state_hash ||
        result.bytes != results[0].bytes) {
      throw std::runtime_error("the ranks disagree about their save");
    }
  }
  return results[0];
}

std::int64_t wrong_values(StateSource& source, const MadeUpModel& model, std::int64_t stride) {
  std::int64_t wrong = 0;
  std::vector<float> values(static_cast<std::size_t>(stride));
  for (const TensorInfo& tensor : model.tensors) {
    for (const StateSection section : sections_of(model.state.kind, tensor.frozen)) {
      for (std::int64_t begin = 0; begin < tensor.num_elements(); begin += stride) {
        const auto out = std::span(values).first(static_cast<std::size_t>(std::min(stride, tensor.num_elements() - begin)));
        source.read(tensor.name, section, begin, out);
        for (std::size_t i = 0; i < out.size(); ++i) {
          const float expected = model.value(tensor.name, section, begin + static_cast<std::int64_t>(i));
          wrong += std::bit_cast<std::uint32_t>(out[i]) != std::bit_cast<std::uint32_t>(expected);
        }
      }
    }
  }
  return wrong;
}

}  // namespace spillway::testing
