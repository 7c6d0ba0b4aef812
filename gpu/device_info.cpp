#include "gpu/device_info.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

#include "gpu/check.h"
#include "gpu/device.h"
#include "spillway/error.h"

namespace spillway::cuda {

namespace {

constexpr std::int64_t kLinkBytes = std::int64_t{64} << 20;  // long enough that starting a copy does not count
constexpr int kRepetitions = 4;

int numa_node(const std::string& address) {
  int node = -1;
  std::ifstream("/sys/bus/pci/devices/" + address + "/numa_node") >> node;
  return node;
}

std::vector<int> peers_of(int index, int count) {
  std::vector<int> peers;
  for (int other = 0; other < count; ++other) {
    int reaches = 0;
    if (other != index) check(cudaDeviceCanAccessPeer(&reaches, index, other), "ask for the peers of device " + std::to_string(index));
    if (reaches != 0) peers.push_back(other);
  }
  return peers;
}

// Between the device and the host's memory, through the streams and the arenas that a run uses.
class Link {
 public:
  explicit Link(Device& device)
      : device_(device),
        down_(device.make_stream("h2d")),
        up_(device.make_stream("d2h")),
        on_device_(device.allocate_arena(2 * kLinkBytes)),
        on_host_(device.allocate_pinned(2 * kLinkBytes)) {}

  // Bytes per second of the quickest of a few.
  double measure(bool down, bool up) {
    double best = 0.0;
    for (int i = 0; i < kRepetitions; ++i) {
      const std::int64_t start = device_.now_ns();
      if (down) down_->copy(on_device_, on_host_, kLinkBytes);
      if (up) up_->copy(on_host_ + kLinkBytes, on_device_ + kLinkBytes, kLinkBytes);
      down_->synchronize();
      up_->synchronize();
      const auto elapsed_ns = static_cast<double>(std::max<std::int64_t>(1, device_.now_ns() - start));
      best = std::max(best, static_cast<double>((down ? kLinkBytes : 0) + (up ? kLinkBytes : 0)) * 1e9 / elapsed_ns);
    }
    return best;
  }

 private:
  Device& device_;
  std::unique_ptr<Stream> down_, up_;
  std::byte* on_device_;
  std::byte* on_host_;
};

void describe(int index, int count, CudaDeviceInfo& info) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "ask for the properties of device " + std::to_string(index));
  info.name = properties.name;
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.total_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  check(cudaDriverGetVersion(&info.driver_version), "ask for the version of the driver");
  check(cudaRuntimeGetVersion(&info.runtime_version), "ask for the version of the runtime");
  info.pci_address = pci_address(index);
  info.numa_node = numa_node(info.pci_address);
  info.peers = peers_of(index, count);
  const std::unique_ptr<Device> device = make_device(index);
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "ask how much memory of device " + std::to_string(index) + " is free");
  info.free_bytes = static_cast<std::int64_t>(free);
  Link link(*device);
  link.measure(true, true);  // the first ones are slow
  info.h2d_bytes_per_s = link.measure(true, false);
  info.d2h_bytes_per_s = link.measure(false, true);
  info.both_ways_bytes_per_s = link.measure(true, true);
}

}  // namespace

std::string pci_address(int index) {
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), index), "ask for the PCI address of device " + std::to_string(index));
  std::string address = text.data();
  std::transform(address.begin(), address.end(), address.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return address;
}

std::string why_no_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return {};
  cudaGetLastError();  // told here
  return "no CUDA device: " + error_text(error == cudaSuccess ? cudaErrorNoDevice : error);
}

int device_count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  if (!means_no_device(error)) check(error, "count the devices");
  cudaGetLastError();  // no error to those who ask how many
  return 0;
}

std::vector<CudaDeviceInfo> devices() {
  std::vector<CudaDeviceInfo> infos(static_cast<std::size_t>(device_count()));
  for (std::size_t i = 0; i < infos.size(); ++i) {
    infos[i].index = static_cast<int>(i);
    try {
      describe(static_cast<int>(i), static_cast<int>(infos.size()), infos[i]);
    } catch (const Error& error) {
      infos[i].error = error.what();
    }
  }
  return infos;
}

}  // namespace spillway::cuda
