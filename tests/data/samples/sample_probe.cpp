// What a loader makes of the samples of a shard, for comparisons with other programs:
//   sample_probe FOLDER IMAGE_SIZE ROWS_PER_FRAME SHARD OUT
// FOLDER has a tokenizer, its chat template and an image processor. Prints {"ids", "frames"} of each sample, and writes
// the float32 values of all frames to OUT.
#include "base/error.h"
#include "data/samples/sample_reader.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <iostream>

int main(int argc, char** argv) {
  using namespace fvlm;
  if (argc != 6) return std::cerr << "see the head of sample_probe.cpp\n", 2;
  try {
    const std::filesystem::path folder = argv[1];
    const Tokenizer tokenizer = Tokenizer::from_file(folder / "tokenizer.json");
    const FramePreparation preparation(std::stoll(argv[2]), read_image_processor(folder));
    plan::Mix mix;
    mix.system = "";
    mix.chat_template = "default";
    const SampleReader reader(mix, tokenizer, preparation, nullptr, {std::stoll(argv[3]), true});
    const auto shard = Shard::open(argv[4], {.index_beside = false});
    std::ofstream out(argv[5], std::ios::binary);
    for (int64_t i = 0; i < shard->size(); ++i) {
      const Sample sample = reader.measure(*shard, shard->sample(i), {});
      if (!sample.dropped.empty()) throw Error(ErrorKind::data, sample.dropped);
      std::vector<float> frames(
          static_cast<size_t>(sample.frames * 3 * preparation.image_size() * preparation.image_size()));
      reader.decode(*shard, sample, frames);
      out.write(reinterpret_cast<const char*>(frames.data()),
                static_cast<std::streamsize>(frames.size() * sizeof(float)));
      std::cout << nlohmann::json{{"ids", sample.texts.at(0).ids}, {"frames", sample.frames}}.dump() << "\n";
    }
    return 0;
  } catch (const Error& error) {
    std::cerr << error.text() << "\n";
    return 1;
  }
}
