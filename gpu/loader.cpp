// The program's side of the CUDA device: finds the shared module, opens it when somebody asks for a device, and hands on
// what it offers. Until then a process carries nothing of CUDA, whose libraries take hundreds of MiB.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>

#include "base/log.h"
#include "gpu/module.h"
#include "spillway/communicator.h"
#include "spillway/device.h"
#include "spillway/error.h"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr const char* kModuleName = "libspillway_cuda.so";
constexpr const char* kDriverName = "libcuda.so.1";

// The module, or why there is none.
struct Opened {
  const cuda::Module* module = nullptr;
  std::string reason;
};

// Where a build tree and an installation have it.
Opened refuse_without_module(const fs::path& folder) {
  return {nullptr, "this build has no CUDA device: no " + std::string(kModuleName) + " in " + folder.string() +
                       ", or ../gpu or ../lib/spillway of it; configure with -Dcuda=enabled where the CUDA toolkit is installed"};
}

fs::path module_beside_program(fs::path& folder) {
  std::error_code error;
  folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {".", "../gpu", "../lib/spillway"}) {
    const fs::path candidate = (folder / place / kModuleName).lexically_normal();
    if (fs::exists(candidate, error)) return candidate;
  }
  return {};
}

// Cheap beside the module, whose libraries are only opened where they can work.
std::string why_no_driver() {
  void* const driver = dlopen(kDriverName, RTLD_LAZY | RTLD_LOCAL);
  if (driver != nullptr) {
    dlclose(driver);
    return {};
  }
  return std::string("no NVIDIA driver here (") + dlerror() + ")";
}

Opened open_module(const fs::path& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {nullptr, std::string("the CUDA module cannot be opened: ") + dlerror()};
  const auto table = reinterpret_cast<decltype(&spillway_cuda_module)>(dlsym(library, "spillway_cuda_module"));
  const cuda::Module* module = table == nullptr ? nullptr : table();
  if (module != nullptr && module->version == cuda::kModuleVersion) {
    module->log_through(log);
    return {module, {}};
  }
  Opened refused = {nullptr, path.string() + (module == nullptr ? " is no CUDA module of this program"
                                                                : " is a CUDA module of another build (version " + std::to_string(module->version) +
                                                                      ", this program has " + std::to_string(cuda::kModuleVersion) + ")") +
                                 "; install the two together"};
  dlclose(library);
  return refused;
}

Opened find_and_open_module() {
  // A module that is named is taken at its word: whether there is a driver is for itself to know.
  if (const char* named = std::getenv("SPILLWAY_CUDA_MODULE"); named != nullptr && *named != '\0') return open_module(named);
  fs::path folder;
  const fs::path path = module_beside_program(folder);
  if (path.empty()) return refuse_without_module(folder);
  if (std::string reason = why_no_driver(); !reason.empty()) return {nullptr, std::move(reason)};
  return open_module(path);
}

// Once opened it stays: devices made by it may live to the end of the process.
Opened cuda_module() {
  static std::mutex mutex;
  static const cuda::Module* opened = nullptr;
  const std::lock_guard lock(mutex);
  if (opened != nullptr) return {opened, {}};
  Opened result = find_and_open_module();
  opened = result.module;
  return result;
}

}  // namespace

std::string why_no_cuda_device() {
  const Opened opened = cuda_module();
  return opened.module == nullptr ? opened.reason : opened.module->why_no_device();
}

int cuda_device_count() {
  const Opened opened = cuda_module();
  return opened.module == nullptr ? 0 : opened.module->device_count();
}

std::unique_ptr<Device> make_cuda_device(int index) {
  const Opened opened = cuda_module();
  const std::string reason = opened.module == nullptr ? opened.reason : opened.module->why_no_device();
  if (!reason.empty()) {
    const bool advises = reason.find("--device host") != std::string::npos;
    throw DeviceError("[cuda] open device " + std::to_string(index) + ": " + reason + (advises ? "" : "; see to that, or use --device host"));
  }
  return opened.module->make_device(index);
}

std::vector<CudaDeviceInfo> cuda_devices() {
  const Opened opened = cuda_module();
  return opened.module == nullptr ? std::vector<CudaDeviceInfo>() : opened.module->devices();
}

std::unique_ptr<World> make_device_world(World& control, Device& device, const WorldOptions& options) {
  if (!device.name().starts_with("cuda:")) return nullptr;
  return cuda_module().module->make_world(control, device, options);
}

}  // namespace spillway
