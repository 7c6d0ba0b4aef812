// spillway export
#include <cstdio>

#include <fmt/format.h>

#include "app/checkpoints.h"
#include "app/commands.h"
#include "base/text.h"
#include "checkpoint/export.h"
#include "spillway/config.h"

namespace spillway::app {

int export_weights(const ExportOptions& options) {
  checkpoint::Reader reader(checkpoint_at(options.checkpoint, "export from"));
  checkpoint::ExportOptions wanted;
  wanted.dtype = options.dtype == "fp32" ? DType::f32 : options.dtype == "bf16" ? DType::bf16 : options.dtype == "fp16" ? DType::f16 : reader.manifest().dtype;
  if (!options.max_file_size.empty()) wanted.max_file_bytes = parse_bytes(options.max_file_size, "--max-file-size");
  wanted.allow_non_finite = options.allow_non_finite;
  const checkpoint::ExportResult result = checkpoint::export_weights(reader, options.to, wanted);
  std::string text = fmt::format("exported {} of {} weights after step {} from {}\n", human_bytes(result.bytes), name_of(wanted.dtype),
                                 reader.manifest().run.step, reader.folder());
  for (const std::string& file : result.files) text += "  " + file + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace spillway::app
