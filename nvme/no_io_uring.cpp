// Takes the place of io_uring_engine.cpp in a build without its library.
#include "io_engine_entry.h"

namespace spillway {

const IoEngineEntry io_uring_entry = {"io_uring", "liburing-dev", true, nullptr};

}  // namespace spillway
