// Simulated NVML, found by the name of the real one: it knows the first device, and always says the same of it.
#include <cstring>

#define NVML_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

int known_device;
constexpr int kSuccess = 0, kNotFound = 6;

}  // namespace

NVML_EXPORT int nvmlInit_v2() { return kSuccess; }
NVML_EXPORT int nvmlShutdown() { return kSuccess; }

NVML_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  if (std::strcmp(address, "0000:01:00.0") != 0) return kNotFound;
  *device = &known_device;
  return kSuccess;
}

NVML_EXPORT int nvmlDeviceGetUtilizationRates(void*, unsigned* rates) {
  rates[0] = 75;
  rates[1] = 20;
  return kSuccess;
}

NVML_EXPORT int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 1ull << 30;
  memory[1] = 3ull << 28;
  memory[2] = 1ull << 28;
  return kSuccess;
}
