// Whether the order of work holds however long parts of it take: rounds of upload, sum and download on three streams, tied by
// events, over a ring of buffers; then the same with host functions that sleep at random places. Every download has to
// hold the same bits.
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "gpu/program.h"
#include "spillway/device.h"
#include "spillway/error.h"
#include "spillway/ops.h"

namespace spillway::bench {
namespace {

constexpr int kSlots = 3;   // of the rings
constexpr int kSleeps = 50;  // in a disturbed turn
constexpr int kLongestSleepUs = 2000;

struct Sizes {
  std::int64_t count;  // elements of a buffer
  int rounds;
  int turns;  // disturbed
};

class Pipeline {
 public:
  explicit Pipeline(const Sizes& sizes) : sizes_(sizes) {
    const std::int64_t bytes = bytes_of_buffer();
    on_device_ = device_->allocate_arena((2 * kSlots + 1) * bytes);
    on_host_ = device_->allocate_pinned((2 * kSlots) * bytes);
    for (auto& events : {&uploaded_, &summed_, &downloaded_})
      for (int slot = 0; slot < kSlots; ++slot) events->push_back(device_->make_event());
  }

  // The hash of every download, in order. `seed` 0: undisturbed.
  std::uint64_t turn(unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> one_in(0, sizes_.rounds * 3 / kSleeps);
    const auto disturb = [&](Stream& stream) {
      const int microseconds = static_cast<int>(random() % kLongestSleepUs);
      if (seed != 0 && one_in(random) == 0) stream.call([microseconds] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
    };
    std::uint64_t hash = 1469598103934665603u;
    const std::int64_t bytes = bytes_of_buffer();
    float* const sum = device_at(2 * kSlots);
    std::memset(host_at(0), 0, static_cast<std::size_t>(bytes));
    compute_->copy(sum, host_at(0), bytes);
    compute_->synchronize();
    for (int round = 0; round < sizes_.rounds + kSlots; ++round) {
      const auto slot = static_cast<std::size_t>(round % kSlots);
      if (round >= kSlots) add_to(hash, slot);
      if (round >= sizes_.rounds) continue;
      upload(round, slot, disturb);
      disturb(*compute_);
      compute_->wait(*uploaded_[slot]);
      ops_->accumulate(*compute_, sum, device_at(slot), sizes_.count);
      // What is downloaded is a copy: the next round adds to the sum meanwhile.
      if (round >= kSlots) compute_->wait(*downloaded_[slot]);
      compute_->copy(device_at(kSlots + slot), sum, bytes);
      compute_->record(*summed_[slot]);
      disturb(*up_);
      up_->wait(*summed_[slot]);
      up_->copy(host_at(kSlots + slot), device_at(kSlots + slot), bytes);
      up_->record(*downloaded_[slot]);
    }
    return hash;
  }

 private:
  std::int64_t bytes_of_buffer() const { return sizes_.count * std::int64_t{sizeof(float)}; }
  float* device_at(std::size_t buffer) const { return reinterpret_cast<float*>(on_device_) + static_cast<std::int64_t>(buffer) * sizes_.count; }
  float* host_at(std::size_t buffer) const { return reinterpret_cast<float*>(on_host_) + static_cast<std::int64_t>(buffer) * sizes_.count; }

  void upload(int round, std::size_t slot, const auto& disturb) {
    float* const values = host_at(slot);  // its download, and so its upload, has ended
    for (std::int64_t i = 0; i < sizes_.count; ++i) values[i] = static_cast<float>((round * 37 + i) % 1009);
    disturb(*down_);
    if (round >= kSlots) down_->wait(*summed_[slot]);
    down_->copy(device_at(slot), values, bytes_of_buffer());
    down_->record(*uploaded_[slot]);
  }

  void add_to(std::uint64_t& hash, std::size_t slot) {
    downloaded_[slot]->synchronize();
    const auto* words = reinterpret_cast<const std::uint32_t*>(host_at(kSlots + slot));
    for (std::int64_t i = 0; i < sizes_.count; ++i) hash = (hash ^ words[i]) * 1099511628211u;
  }

  Sizes sizes_;
  std::unique_ptr<Device> device_ = make_cuda_device(0);
  std::unique_ptr<Stream> down_ = device_->make_stream("h2d"), compute_ = device_->make_stream("compute"), up_ = device_->make_stream("d2h");
  std::unique_ptr<Ops> ops_ = device_->make_ops(DType::bf16);
  std::vector<std::unique_ptr<Event>> uploaded_, summed_, downloaded_;
  std::byte* on_device_ = nullptr;
  std::byte* on_host_ = nullptr;
};

void check(const Sizes& sizes) {
  Pipeline pipeline(sizes);
  const std::uint64_t undisturbed = pipeline.turn(0);
  for (int seed = 1; seed <= sizes.turns; ++seed) {
    const std::uint64_t disturbed = pipeline.turn(static_cast<unsigned>(seed));
    if (disturbed != undisturbed)
      throw DeviceError(fmt::format("[stress] with sleeps of seed {} the downloads hash to {:016x}, without to {:016x}", seed, disturbed, undisturbed));
  }
  fmt::print("{{\"rounds\": {}, \"turns\": {}, \"hash\": \"{:016x}\"}}\n", sizes.rounds, sizes.turns, undisturbed);
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  using spillway::bench::Sizes;
  return spillway::bench::run_program(argc, argv, [](bool quick) { spillway::bench::check(quick ? Sizes{2048, 100, 2} : Sizes{1 << 20, 300, 5}); });
}
