// What members of samples and files are by the endings of their names, which stand here without the dot.
#pragma once
#include <string>

namespace fvlm {

bool is_image(const std::string& ending); // one that is decoded to a picture: jpg, jpeg, png, webp
bool is_video(const std::string& ending); // gif, and what a plugin reads
// Whether a sample has a use for a member of this name, such as "000.jpg", "mp4" or "npy", or says why it has none.
bool may_have_frames(const std::string& name);
// Whether the name ends like that of an image in a format that is not read.
bool is_unread_image(const std::string& name);

} // namespace fvlm
