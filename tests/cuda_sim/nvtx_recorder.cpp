// A tool as NVTX loads one (NVTX_INJECTION64_PATH): keeps the names of the ranges that were pushed and not popped, and of
// all that ever were, for a test in the same process to ask for.
#include <mutex>
#include <string>

#include <nvtx3/nvToolsExt.h>

namespace {

std::mutex mutex;
std::string names;  // one a line
int depth = 0;

int NVTX_API pushed(nvtxDomainHandle_t, const nvtxEventAttributes_t* attributes) {
  const std::lock_guard lock(mutex);
  names += std::string(attributes->message.ascii) + "\n";
  return depth++;
}

int NVTX_API popped(nvtxDomainHandle_t) {
  const std::lock_guard lock(mutex);
  return --depth;
}

// NVTX asks for a handle to give to the others.
nvtxDomainHandle_t NVTX_API created(const char*) { return reinterpret_cast<nvtxDomainHandle_t>(&names); }

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(pushed);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(popped);
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(created);
  return 1;
}

extern "C" __attribute__((visibility("default"))) const char* nvtx_recorded_names() { return names.c_str(); }
extern "C" __attribute__((visibility("default"))) int nvtx_open_ranges() { return depth; }
