// Takes the place of libaio_engine.cpp in a build without its library.
#include "io_engine_entry.h"

namespace spillway {

const IoEngineEntry libaio_entry = {"libaio", "libaio-dev", false, nullptr};

}  // namespace spillway
