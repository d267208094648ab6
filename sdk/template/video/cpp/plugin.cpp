// @NAME@: uncompressed video in plain C++: YUV4MPEG2 files in 4:4:4, frames of one size one after the other. A short
// starting point. fvlm/video.h specifies each function.
#include <fvlm/fvlm.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace fvlm::sdk;
using std::int64_t;
using std::uint8_t;

// A file and its header line.
class Stream {
 public:
  Stream(const fvlm_video_query& query, const fvlm_video_file& file) : file_(file) {
    const auto text = read<char>(0, static_cast<int64_t>(std::min<std::uint64_t>(file.size, 128)));
    const auto end = std::find(text.begin(), text.end(), '\n');
    std::istringstream words(std::string(text.begin(), end));
    std::string word;
    words >> word;
    if (end == text.end() || word != "YUV4MPEG2") throw Failure(FVLM_ERROR_DATA, "not a YUV4MPEG2 file");
    long numerator = 0, denominator = 0; // frames per second
    while (words >> word) {
      std::istringstream value(word.substr(1));
      char colon = 0;
      if (word[0] == 'W') value >> width;
      if (word[0] == 'H') value >> height;
      if (word[0] == 'F') value >> numerator >> colon >> denominator;
    }
    if (width <= 0 || height <= 0 || height > query.most_pixels / width) {
      throw Failure(FVLM_ERROR_DATA, "pictures of %lld x %lld pixels", static_cast<long long>(width),
                    static_cast<long long>(height));
    }
    if (numerator <= 0 || denominator <= 0) throw Failure(FVLM_ERROR_DATA, "no frames a second");
    frame_seconds = static_cast<double>(denominator) / static_cast<double>(numerator);
    begin_ = end - text.begin() + 1;
    frames = (static_cast<int64_t>(file.size) - begin_) / frame_bytes();
    if (frames < 1) throw Failure(FVLM_ERROR_DATA, "no frame");
  }

  int64_t width = 0, height = 0, frames = 0;
  double frame_seconds = 0;
  double seconds() const { return static_cast<double>(frames) * frame_seconds; }

  // [height, width, 3]
  std::vector<uint8_t> frame(int64_t number) const {
    const auto bytes = read<uint8_t>(begin_ + number * frame_bytes(), frame_bytes());
    if (!std::equal(bytes.begin(), bytes.begin() + 6, "FRAME\n")) {
      throw Failure(FVLM_ERROR_DATA, "frame %lld is damaged", static_cast<long long>(number));
    }
    const auto pixels = static_cast<std::size_t>(width * height);
    const uint8_t *const luma = bytes.data() + 6, *const blue = luma + pixels, *const red = blue + pixels;
    std::vector<uint8_t> rgb;
    rgb.reserve(3 * pixels);
    for (std::size_t i = 0; i < pixels; ++i) {
      const double y = (luma[i] - 16) * 255.0 / 219, u = blue[i] - 128, v = red[i] - 128;
      for (const double value : {y + 1.596 * v, y - 0.392 * u - 0.813 * v, y + 2.017 * u}) {
        rgb.push_back(static_cast<uint8_t>(std::clamp(value, 0.0, 255.0) + 0.5));
      }
    }
    return rgb;
  }

  // Throws if the engine has cancelled the call.
  void go_on() const {
    if (file_.stop(file_.context)) throw Failure(FVLM_ERROR_DATA, "stopped");
  }

 private:
  int64_t frame_bytes() const { return 6 + 3 * width * height; } // "FRAME\n", three planes

  template <class Byte>
  std::vector<Byte> read(int64_t offset, int64_t count) const {
    go_on();
    std::vector<Byte> bytes(static_cast<std::size_t>(count));
    if (file_.read(file_.context, static_cast<std::uint64_t>(offset), bytes.data(), bytes.size())) {
      throw Failure(FVLM_ERROR_DEVICE, "the file could not be read");
    }
    return bytes;
  }

  const fvlm_video_file& file_;
  int64_t begin_ = 0; // of the first frame
};

class Uncompressed : public Video {
 public:
  static Support supports(const Query& query) {
    if (!query.format || query.most_pixels < 1) return refuse("no format, or no pixels");
    if (query.format != std::string("y4m")) return refuse("files that end in .%.32s", query.format);
    return accept(10, "uncompressed frames");
  }

  void probe(const Query& query, const Probe& arguments) {
    const Stream stream(query, *arguments.file);
    *arguments.seconds = stream.seconds();
    *arguments.width = stream.width;
    *arguments.height = stream.height;
  }

  void decode(const Query& query, const Decode& arguments) {
    const Stream stream(query, *arguments.file);
    std::vector<uint8_t> rgb;
    int64_t held = -1;
    for (int64_t i = 0; i < arguments.time_count; ++i) {
      stream.go_on();
      const double place = arguments.times[i] / stream.frame_seconds + 1e-6;
      const bool behind = place >= static_cast<double>(stream.frames);
      const int64_t frame = behind ? stream.frames - 1 : static_cast<int64_t>(place);
      if (frame != held) rgb = stream.frame(held = frame);
      const Picture picture{sizeof picture, i, stream.width, stream.height, 3 * stream.width, rgb.data()};
      if (arguments.picture(arguments.context, &picture)) throw Failure(FVLM_ERROR_DATA, "stopped");
    }
    const double last = arguments.time_count > 0 ? arguments.times[arguments.time_count - 1] : 0;
    *arguments.seconds = std::min(last, stream.seconds());
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", Uncompressed)
