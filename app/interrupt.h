// SIGINT and SIGTERM ask the run to end after the step in progress; a second one ends it at once.
#pragma once

namespace spillway::app {

// Installs the handlers. Once per process.
void watch_for_interrupt();

// The signal that asked for the end; 0: none.
int interrupted();

}  // namespace spillway::app
