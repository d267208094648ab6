// What a loader makes of the samples of a shard, for comparisons with other programs:
//   sample_probe FOLDER IMAGE_SIZE ROWS_PER_FRAME SHARD OUT [chatml]
// FOLDER has a tokenizer, its chat template and an image processor. Prints {"ids", "mask", "frames"} or {"error"} of
// each sample, and writes the float32 values of all frames to OUT. Without rows the samples are text.
#include "base/error.h"
#include "data/samples/sample_reader.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <iostream>

int main(int argc, char** argv) {
  using namespace fvlm;
  if (argc != 6 && argc != 7) return std::cerr << "see the head of sample_probe.cpp\n", 2;
  try {
    const std::filesystem::path folder = argv[1];
    const Tokenizer tokenizer = Tokenizer::from_file(folder / "tokenizer.json");
    const int64_t size = std::stoll(argv[2]), rows = std::stoll(argv[3]);
    const FramePreparation preparation =
        rows > 0 ? FramePreparation(size, find_image_processor(folder).value()) : FramePreparation(size);
    plan::Mix mix;
    mix.system = "";
    mix.max_frames = 1024;
    if (argc == 6) mix.chat_template = "default";
    const SampleReader reader(mix, tokenizer, preparation, nullptr, {rows, rows > 0});
    const auto shard = Shard::open(argv[4], {.index_beside = false});
    std::ofstream out(argv[5], std::ios::binary);
    for (int64_t i = 0; i < shard->size(); ++i) try {
        const Sample sample = reader.measure(*shard, shard->sample(i), {});
        if (!sample.dropped.empty()) throw Error(ErrorKind::data, sample.dropped);
        std::vector<float> frames(
            static_cast<size_t>(sample.frames * 3 * preparation.image_size() * preparation.image_size()));
        if (sample.frames > 0) reader.decode(*shard, sample, frames);
        out.write(reinterpret_cast<const char*>(frames.data()),
                  static_cast<std::streamsize>(frames.size() * sizeof(float)));
        const SampleText& text = sample.texts.at(0);
        std::cout << nlohmann::json{{"ids", text.ids}, {"mask", text.answer_mask}, {"frames", sample.frames}}.dump()
                  << "\n";
      } catch (const Error& error) {
        std::cout << nlohmann::json{{"error", error.text()}}.dump() << "\n";
      }
    return 0;
  } catch (const Error& error) {
    std::cerr << error.text() << "\n";
    return 1;
  }
}
