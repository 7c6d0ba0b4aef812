// Writes a checkpoint of three ranks, and exports it in every type, for programs that are not ours to read.
// usage: checkpoint_sample FOLDER
#include <cstdio>
#include <exception>
#include <string>

#include "checkpoint/export.h"
#include "support/saved_run.h"

int main(int argc, char** argv) {
  using namespace spillway;
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  try {
    testing::MadeUpModel model = testing::tiny_gpt2("wpe");
    model.odd = {"wte.weight", 11, 1.0009765625f * 1.5f};  // between two bf16 values and between two fp16 values
    const checkpoint::SaveResult saved = testing::save_once(folder, model, 7, {.world = 3, .tile_elements = 500});
    if (!saved.ok()) throw std::runtime_error(saved.error);
    checkpoint::Reader reader(saved.folder);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      checkpoint::export_weights(reader, folder + "/" + std::string(name_of(dtype)), {.dtype = dtype, .max_file_bytes = 9000});
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
