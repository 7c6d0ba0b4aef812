// spillway inspect
#include <cstdio>

#include <fmt/format.h>

#include "app/checkpoints.h"
#include "app/commands.h"
#include "base/text.h"
#include "checkpoint/inspect.h"
#include "spillway/error.h"

namespace spillway::app {

namespace {

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void verify_all(checkpoint::Reader& reader) {
  const checkpoint::Verification result = checkpoint::verify(reader);
  if (result.ok()) return print(fmt::format("verified     {} read, every checksum and hash as written\n", human_bytes(result.bytes)));
  for (const std::string& problem : result.problems) print("damaged      " + problem + "\n");
  throw IoError(fmt::format("[checkpoint] verify '{}': {} of its parts are not as they were written, the first: {}; go on from another checkpoint",
                            reader.folder(), result.problems.size(), result.problems.front()));
}

}  // namespace

int inspect(const InspectOptions& options) {
  checkpoint::Reader reader(checkpoint_at(options.checkpoint, "inspect"));
  if (!options.diff.empty()) {
    checkpoint::Reader other(checkpoint_at(options.diff, "compare with"));
    const checkpoint::CheckpointDifference difference = checkpoint::compare(reader, other);
    print(fmt::format("comparing {} with {}\n{}", reader.folder(), other.folder(), checkpoint::to_text(difference)));
    return difference.equal() ? 0 : 1;
  }
  print(checkpoint::describe(reader));
  if (!options.quick) verify_all(reader);
  return 0;
}

}  // namespace spillway::app
