// What the programs of this folder have in common: an exit status, and sizes that --quick makes tiny, for the simulation.
#pragma once

#include <cstdio>
#include <exception>
#include <string_view>

namespace spillway::bench {

// Calls work(quick); the exit status of the program. What it throws goes to the terminal.
template <class Work>
int run_program(int argc, char** argv, Work work) {
  try {
    work(argc > 1 && std::string_view(argv[1]) == "--quick");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace spillway::bench
