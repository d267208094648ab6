#include "data/samples/media_file.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mapped_file.h"
#include "data/media/decode_image.h"
#include "data/media/endings.h"
#include "data/media/gif.h"
#include "data/media/video.h"
#include "data/samples/frames.h"

#include <algorithm>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

bool is_picture(const fs::path& path) {
  const std::string ending = path.extension().string();
  return !ending.empty() && is_image(ending.substr(1));
}

// The name with its numbers filled up with zeros: 2.jpg comes before 10.jpg.
std::string place_of(const fs::path& picture) {
  constexpr size_t longest = 20;
  const std::string name = picture.filename().string();
  std::string place;
  for (size_t at = 0, end = 0; at < name.size(); at = end) {
    end = std::min(name.find_first_not_of("0123456789", at), name.size());
    if (const size_t digits = end - at; digits > 0)
      place.append(longest - std::min(digits, longest), '0');
    else
      ++end;
    place.append(name, at, end - at);
  }
  return place;
}

template <class Work>
auto with_path_context(const fs::path& path, Work&& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (!error.where().empty()) throw;
    throw Error(error.kind(), error.what()).at(path.string()).advise(error.advice());
  }
}

// Calls the work with the bytes of an image's file. Errors of both name the image.
template <class Work>
auto with_bytes(const Picture& picture, Work&& work) {
  const std::string file = picture.content.empty() ? read_file(picture.path, max_image_file_bytes) : "";
  const std::string& bytes = picture.content.empty() ? file : picture.content;
  return with_path_context(picture.path, [&] {
    if (bytes.size() > max_image_file_bytes)
      throw Error(ErrorKind::data, "it has {} bytes, more than the {} of an image", bytes.size(), max_image_file_bytes);
    return work(std::as_bytes(std::span(bytes)));
  });
}

} // namespace

MediaFile::MediaFile(fs::path path, const MediaOptions& options, std::optional<TimeSpan> span)
    : path_(std::move(path)), options_(options) {
  if (fs::is_directory(path_)) {
    with_path_context(path_, [&] { options_.preparation().require_videos(); });
    find_pictures(span);
    if (!options_.preparation().has_own_videos()) count_tiles();
    return;
  }
  const auto file = MappedFile::open(path_);
  const auto head = file->bytes().first(std::min<size_t>(file->bytes().size(), 64));
  if (looks_like_image(head) && !looks_like_gif(head)) {
    pictures_ = {{path_}};
    frames_ = copies_ = options_.image_frames;
    count_tiles();
    return;
  }
  video_ = std::make_shared<BytesInMemory>(file->bytes(), file);
  with_path_context(path_, [&] {
    options_.preparation().require_videos();
    find_times(span);
  });
}

MediaFile::MediaFile(std::span<const std::byte> video, const MediaOptions& options)
    : MediaFile(std::make_shared<const BytesInMemory>(video, nullptr), options) {}

MediaFile::MediaFile(std::shared_ptr<const RandomAccess> video, const MediaOptions& options)
    : options_(options), video_(std::move(video)) {
  options_.preparation().require_videos();
  find_times({});
}

MediaFile::MediaFile(std::vector<Picture> images, const MediaOptions& options)
    : options_(options), pictures_(std::move(images)) {
  frames_ = std::ssize(pictures_);
  if (frames_ == 1) frames_ = copies_ = options_.image_frames;
  count_tiles();
}

// The frames are in the order of their names, whose numbers count as such.
void MediaFile::find_pictures(std::optional<TimeSpan> span) {
  for (const auto& entry : fs::directory_iterator(path_))
    if (is_picture(entry.path())) pictures_.push_back({entry.path()});
  if (pictures_.empty()) throw Error(ErrorKind::data, "there is no image in this folder").at(path_.string());
  std::ranges::sort(pictures_, {}, [](const Picture& each) { return std::pair(place_of(each.path), each.path); });
  if (span) {
    const auto at = [&](double seconds) {
      const double picture =
          std::clamp(seconds * options_.images_per_second, 0.0, static_cast<double>(pictures_.size()));
      return pictures_.begin() + static_cast<std::ptrdiff_t>(picture);
    };
    pictures_ = span->begin < span->end ? std::vector<Picture>(at(span->begin), at(span->end)) : std::vector<Picture>();
    if (pictures_.empty())
      throw Error(ErrorKind::data, "it has no picture from {:.2f} to {:.2f} s at {} a second", span->begin, span->end,
                  options_.images_per_second)
          .at(path_.string());
  }
  int64_t most = options_.max_frames;
  std::optional<ImageSize> cut;
  if (options_.preparation().has_cells()) {
    with_bytes(pictures_.front(), [&](std::span<const std::byte> bytes) {
      cut = FramePreparation::size_of(bytes);
      most = frames_within(*cut, std::min(most, std::ssize(pictures_)));
    });
  }
  most = options_.preparation().most_frames(most);
  std::vector<Picture> picked;
  for (const int64_t pick : evenly_spaced(std::ssize(pictures_), most)) {
    picked.push_back(pictures_[static_cast<size_t>(pick)]);
    if (options_.preparation().has_own_videos())
      times_.push_back(static_cast<double>(pick) / (span ? options_.images_per_second : 1));
  }
  pictures_ = std::move(picked);
  frames_ = std::ssize(pictures_);
  if (!times_.empty()) seconds_ = times_.back();
  if (cut) place_cells(*cut);
}

int64_t MediaFile::frames_within(ImageSize frame, int64_t frames) const {
  if (!options_.max_cells) return frames;
  return options_.preparation().frames_within(*options_.max_cells, frame, frames);
}

void MediaFile::place_cells(ImageSize frame) {
  tiles_ = options_.preparation().video_cells(frame, times_);
  frames_ = 0;
  for (const TileGrid& cells : tiles_) {
    frames_ += cells.frames();
    squares_ += cells.frames() * cells.step_frames;
  }
}

void MediaFile::count_tiles() {
  const FramePreparation preparation = options_.preparation();
  if (!preparation.makes_tiles()) return;
  frames_ = 0;
  copies_ = 1;
  for (const Picture& picture : pictures_) {
    with_bytes(picture, [&](std::span<const std::byte> bytes) {
      tiles_.push_back(preparation.layout(bytes, std::ssize(pictures_)).grid());
    });
    frames_ += tiles_.back().frames();
  }
}

void MediaFile::find_times(std::optional<TimeSpan> span) {
  const VideoInfo info = probe_video(options_.video, *video_);
  const ImageSize frame{info.height, info.width};
  const bool has_cells = options_.preparation().has_cells();
  if (info.is_still) {
    times_ = {0};
    frames_ = 1;
    pixels_ = info.width * info.height;
    if (has_cells) place_cells(frame);
    return;
  }
  const double seconds = info.seconds;
  if (!(seconds > 0)) throw Error(ErrorKind::data, "this video does not say how long it is");
  TimeSpan shown = span.value_or(TimeSpan{0, seconds});
  shown.end = std::min(shown.end, seconds);
  if (!(shown.begin >= 0 && shown.begin < shown.end))
    throw Error(ErrorKind::data, "nothing of a video of {:.2f} s lies between {:.2f} and {:.2f} s", seconds,
                shown.begin, span->end);
  const double length = shown.end - shown.begin;
  seconds_ = seconds;
  times_ = options_.preparation().video_times(length, options_.max_frames);
  if (has_cells) times_ = sample_frame_times(length, frames_within(frame, std::ssize(times_)));
  for (double& time : times_) time += shown.begin;
  frames_ = std::ssize(times_);
  pixels_ = frames_ * info.width * info.height;
  if (has_cells) place_cells(frame);
}

void MediaFile::decode(std::span<float> frames) const {
  const FramePreparation preparation = options_.preparation();
  const auto frame = static_cast<size_t>(3 * preparation.image_size() * preparation.image_size());
  if (frames.size() != static_cast<size_t>(distinct_frames()) * frame)
    throw Error(ErrorKind::internal, "{} floats for {} frames", frames.size(), distinct_frames());
  size_t end = 0;
  const auto take = [&](std::span<const uint8_t> pixels) {
    preparation.normalise(pixels, frames.subspan(end, frame));
    end += frame;
  };
  if (video_) {
    with_path_context(path_, [&] { preparation.prepare_video(options_.video, *video_, times_, take); });
    return;
  }
  if (!times_.empty())
    return preparation.prepare_pictures(
        std::ssize(pictures_),
        [&](int64_t number) {
          return with_bytes(pictures_[static_cast<size_t>(number)],
                            [](std::span<const std::byte> bytes) { return FramePreparation::decoded(bytes); });
        },
        take);
  for (const Picture& picture : pictures_)
    with_bytes(picture, [&](std::span<const std::byte> bytes) {
      preparation.prepare_image(bytes, std::ssize(pictures_), take);
    });
}

} // namespace fvlm
