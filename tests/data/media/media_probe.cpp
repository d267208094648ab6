// media_probe decode OUT WIDTH HEIGHT SCALED FILE...   appends each picture to OUT: int32 width and height, RGB bytes;
//                                                     for WIDTH 0 as it is, else resized; "-1 -1" for a broken one
// media_probe process FOLDER OUT FILE...               appends what the folder's image processor makes of each picture:
//                                                     int32 frames, rows, columns, height, width, then float32 values
// media_probe cells FOLDER WIDTH HEIGHT FRAMES         prints a line for each entry of a video with so many frames, a
//                                                     second apart: rows, columns, steps, seconds a step, label
// media_probe video FOLDER OUT FILE...                 writes the float32 values of a video's cells
// media_probe animate OUT WIDTH HEIGHT FILE TIME...    writes the frames of a GIF at these times, RGB bytes
// media_probe time WIDTH HEIGHT SCALED SECONDS FILE    milliseconds an image: decode, resize, normalise
#include "base/error.h"
#include "base/file.h"
#include "data/media/decode_image.h"
#include "data/media/frame_preparation.h"
#include "data/media/image_processor.h"
#include "data/media/normalise.h"
#include "data/media/resize.h"
#include "data/media/video.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>

namespace {

fvlm::DecodeOptions options(int64_t width, int64_t height, bool scaled) {
  fvlm::DecodeOptions options;
  if (scaled) options.width = width, options.height = height;
  return options;
}

fvlm::Image decode(const std::string& file, const fvlm::DecodeOptions& options) {
  return fvlm::decode_image(std::as_bytes(std::span(file)), options);
}

void append(std::ofstream& out, int64_t width, int64_t height, const std::vector<uint8_t>& rgb) {
  const std::array<int32_t, 2> size{static_cast<int32_t>(width), static_cast<int32_t>(height)};
  out.write(reinterpret_cast<const char*>(size.data()), sizeof size);
  out.write(reinterpret_cast<const char*>(rgb.data()), static_cast<std::streamsize>(rgb.size()));
}

void decode_all(const std::vector<std::string>& words) {
  std::ofstream out(words[1], std::ios::binary);
  const int64_t width = std::stoll(words[2]), height = std::stoll(words[3]);
  for (size_t i = 5; i < words.size(); ++i) {
    try {
      const fvlm::Image image = decode(fvlm::read_file(words[i]), options(width, height, words[4] == "1"));
      if (width == 0) {
        append(out, image.width, image.height, image.rgb);
        continue;
      }
      std::vector<uint8_t> small(static_cast<size_t>(width * height * 3));
      fvlm::resize(image, width, height, small);
      append(out, width, height, small);
    } catch (const fvlm::Error& error) {
      std::cout << words[i] << ": " << error.text() << "\n";
      append(out, -1, -1, {});
    }
  }
}

class File final : public fvlm::RandomAccess {
 public:
  explicit File(std::string bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> into) const override {
    std::memcpy(into.data(), bytes_.data() + offset, into.size());
  }

 private:
  std::string bytes_;
};

void animate(const std::vector<std::string>& words) {
  const File file(fvlm::read_file(words[4]));
  const int64_t width = std::stoll(words[2]), height = std::stoll(words[3]);
  std::vector<double> times;
  for (size_t i = 5; i < words.size(); ++i) times.push_back(std::stod(words[i]));
  std::vector<uint8_t> frames(times.size() * static_cast<size_t>(width * height * 3));
  fvlm::decode_video(nullptr, file, times, width, height, frames);
  std::ofstream(words[1], std::ios::binary)
      .write(reinterpret_cast<const char*>(frames.data()), static_cast<std::streamsize>(frames.size()));
  std::cout << fvlm::probe_video(nullptr, file).seconds;
}

void process_all(const std::vector<std::string>& words) {
  const fvlm::ImageProcessor processor = fvlm::find_image_processor(words[1]).value();
  std::ofstream out(words[2], std::ios::binary);
  for (size_t i = 3; i < words.size(); ++i) {
    const fvlm::Image image = decode(fvlm::read_file(words[i]), {.white_background = true});
    const fvlm::ImageLayout layout = layout_of(processor, {image.height, image.width});
    std::vector<float> values(static_cast<size_t>(layout.frames() * 3 * layout.frame.height * layout.frame.width));
    process(processor, image, values);
    for (const int64_t number :
         {layout.frames(), layout.rows, layout.columns, layout.frame.height, layout.frame.width}) {
      const auto written = static_cast<int32_t>(number);
      out.write(reinterpret_cast<const char*>(&written), sizeof written);
    }
    out.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
}

fvlm::FramePreparation preparation_of(const std::string& folder) {
  const fvlm::ImageProcessor processor = fvlm::find_image_processor(folder).value();
  return {frame_size(processor)->height, processor};
}

void print_cells(const std::vector<std::string>& words) {
  std::vector<double> times;
  for (int64_t i = 0; i < std::stoll(words[4]); ++i) times.push_back(static_cast<double>(i));
  for (const fvlm::TileGrid& cells :
       preparation_of(words[1]).video_cells({std::stoll(words[3]), std::stoll(words[2])}, times))
    std::cout << cells.rows << " " << cells.columns << " " << cells.steps << " " << cells.step_seconds << " "
              << cells.label_seconds.value_or(-1) << "\n";
}

void cut_video(const std::vector<std::string>& words) {
  const fvlm::FramePreparation preparation = preparation_of(words[1]);
  std::ofstream out(words[2], std::ios::binary);
  preparation.prepare_pictures(
      std::ssize(words) - 3,
      [&](int64_t frame) { return decode(fvlm::read_file(words[static_cast<size_t>(frame) + 3]), {}); },
      [&](std::span<const uint8_t> pixels) {
        std::vector<float> values(pixels.size());
        preparation.normalise(pixels, values);
        out.write(reinterpret_cast<const char*>(values.data()),
                  static_cast<std::streamsize>(values.size() * sizeof(float)));
      });
}

void time_one(const std::vector<std::string>& words) {
  using Clock = std::chrono::steady_clock;
  const int64_t width = std::stoll(words[1]), height = std::stoll(words[2]);
  const std::string file = fvlm::read_file(words[5]);
  std::vector<uint8_t> small(static_cast<size_t>(width * height * 3));
  std::vector<float> floats(small.size());
  std::array<double, 3> best{1e9, 1e9, 1e9};
  const auto begin = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - begin).count() < std::stod(words[4])) {
    const auto start = Clock::now();
    const fvlm::Image image = decode(file, options(width, height, words[3] == "1"));
    const auto decoded = Clock::now();
    fvlm::resize(image, width, height, small);
    const auto resized = Clock::now();
    fvlm::normalise(small, floats);
    const auto end = Clock::now();
    const std::array spans{decoded - start, resized - decoded, end - resized};
    for (size_t i = 0; i < 3; ++i)
      best[i] = std::min(best[i], std::chrono::duration<double, std::milli>(spans[i]).count());
  }
  std::printf("%.3f %.3f %.3f\n", best[0], best[1], best[2]);
}

} // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() >= 6 && words[0] == "decode") return decode_all(words), 0;
  if (words.size() >= 6 && words[0] == "animate") return animate(words), 0;
  const bool cuts = words.size() == 5 && words[0] == "cells", writes = words.size() >= 4 && words[0] == "video";
  if (cuts || writes || (words.size() >= 4 && words[0] == "process")) {
    try {
      return (cuts ? print_cells : writes ? cut_video : process_all)(words), 0;
    } catch (const fvlm::Error& error) {
      std::cerr << error.text() << "\n";
      return error.exit_code();
    }
  }
  if (words.size() == 6 && words[0] == "time") return time_one(words), 0;
  std::cerr << "see the head of media_probe.cpp\n";
  return 2;
}
