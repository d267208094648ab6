#include "data/media/endings.h"

#include "base/text.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace fvlm {
namespace {

constexpr std::array<std::string_view, 4> images = {"jpg", "jpeg", "png", "webp"};
constexpr std::array<std::string_view, 6> videos = {"mp4", "gif", "webm", "mkv", "avi", "mov"};
constexpr std::array<std::string_view, 6> unread = {"bmp", "tif", "tiff", "avif", "heic", "jxl"};

template <size_t count>
bool is_one_of(const std::array<std::string_view, count>& endings, const std::string& ending) {
  return std::ranges::find(endings, lower_case(ending)) != endings.end();
}

} // namespace

bool is_image(const std::string& ending) {
  return is_one_of(images, ending);
}

bool is_video(const std::string& ending) {
  return is_one_of(videos, ending);
}

bool is_unread_image(const std::string& name) {
  return is_one_of(unread, name.substr(name.rfind('.') + 1));
}

bool may_have_frames(const std::string& name) {
  const std::string ending = name.substr(name.rfind('.') + 1);
  return is_image(ending) || is_video(ending) || is_unread_image(ending) || lower_case(ending) == "npy";
}

} // namespace fvlm
