#include "gpu/device_account.h"

#include <dlfcn.h>

namespace spillway::cuda {

namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

// NVML's header is not part of the toolkit everywhere; these few of its functions are, in every driver since 2013.
using Result = int;  // 0: success
struct Utilization {
  unsigned gpu, memory;  // per cent
};
struct Memory {
  unsigned long long total, free, used;
};
using Init = Result();
using Shutdown = Result();
using HandleByPciBusId = Result(const char*, void**);
using UtilizationRates = Result(void*, Utilization*);
using MemoryInfo = Result(void*, Memory*);

// Calls a function of NVML; false if there is none of that name or it fails.
template <class F, class... Arguments>
bool call(void* library, const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr && function(arguments...) == 0;
}

}  // namespace

DeviceAccount::DeviceAccount(const std::string& pci_address) : library_(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr || !call<Init>(library_, "nvmlInit_v2")) return;
  if (!call<HandleByPciBusId>(library_, "nvmlDeviceGetHandleByPciBusId_v2", pci_address.c_str(), &device_)) device_ = nullptr;
  if (device_ == nullptr) call<Shutdown>(library_, "nvmlShutdown");
}

DeviceAccount::~DeviceAccount() {
  if (device_ != nullptr) call<Shutdown>(library_, "nvmlShutdown");
  if (library_ != nullptr) dlclose(library_);
}

std::optional<DeviceUse> DeviceAccount::use() const {
  if (device_ == nullptr) return std::nullopt;
  Utilization utilization{};
  Memory memory{};
  if (!call<UtilizationRates>(library_, "nvmlDeviceGetUtilizationRates", device_, &utilization)) return std::nullopt;
  if (!call<MemoryInfo>(library_, "nvmlDeviceGetMemoryInfo", device_, &memory)) return std::nullopt;
  return DeviceUse{utilization.gpu / 100.0, static_cast<std::int64_t>(memory.used)};
}

}  // namespace spillway::cuda
