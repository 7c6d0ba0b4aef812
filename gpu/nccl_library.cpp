#include "gpu/nccl_library.h"

#include <dlfcn.h>

#include <string>

#include "spillway/error.h"

namespace spillway::cuda {

namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw CommError("[nccl] open " SPILLWAY_NCCL ": it has no " + std::string(name) + "; install NCCL " + std::to_string(NCCL_MAJOR) + "." +
                    std::to_string(NCCL_MINOR) + " or later");
}

// It stays open: its threads may outlive every communicator.
NcclLibrary open() {
  void* const library = dlopen(SPILLWAY_NCCL, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw CommError("[nccl] open " SPILLWAY_NCCL ": " + std::string(dlerror()) +
                    "; several ranks on CUDA devices need NCCL: install it (libnccl2) or give its folder in LD_LIBRARY_PATH");
  NcclLibrary functions{};
  find(library, "ncclGetUniqueId", functions.get_unique_id);
  find(library, "ncclCommInitRankConfig", functions.init_rank);
  find(library, "ncclCommSplit", functions.split);
  find(library, "ncclCommFinalize", functions.finalize);
  find(library, "ncclCommDestroy", functions.destroy);
  find(library, "ncclCommAbort", functions.abort);
  find(library, "ncclCommGetAsyncError", functions.get_async_error);
  find(library, "ncclGetErrorString", functions.error_string);
  find(library, "ncclGetLastError", functions.last_error);
  find(library, "ncclGroupStart", functions.group_start);
  find(library, "ncclGroupEnd", functions.group_end);
  find(library, "ncclAllGather", functions.all_gather);
  find(library, "ncclBroadcast", functions.broadcast);
  find(library, "ncclSend", functions.send);
  find(library, "ncclRecv", functions.receive);
  return functions;
}

}  // namespace

const NcclLibrary& nccl() {
  static const NcclLibrary library = open();
  return library;
}

}  // namespace spillway::cuda
