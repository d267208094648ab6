// <image> and <video> in what a user says. They are removed, or become placeholders for the visual rows of the frames.
#pragma once
#include "data/tokenizer.h"
#include "recipe/visual_rows.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

inline constexpr std::string_view image_mark = "<image>", video_mark = "<video>";

// In the ids of a text between its tokenization and expand_marks(), when the number of frames is known.
inline constexpr TokenId image_mark_id = -2, video_mark_id = -3;

// Calls `text` for each piece between marks that is not empty, and `mark` for each mark, in order.
void split_at_marks(std::string_view text, const std::function<void(std::string_view)>& on_text,
                    const std::function<void(std::string_view)>& on_mark);
bool has_visual_mark(std::string_view text);
// The text without its marks and, if it had any, without the space around it.
std::string without_marks(const std::string& text);

// How a sample's frames are filled in.
struct MarkedFrames {
  int64_t frames = 0, rows_per_frame = 1;
  bool is_one_image = false; // which is repeated: <image> stands for all frames
};
// Replaces each mark in the ids by placeholders: <video> by the rows of all frames, <image> by those of the next one.
// The mask, if it is not empty, stays as long as the ids. Returns the number of placeholders. Throws Error(data) unless
// it is 0 or that of the visual rows.
int64_t expand_marks(std::vector<TokenId>& ids, std::vector<uint8_t>& mask, const MarkedFrames& frames);

// The text with "[64 visual rows]" where placeholders stand.
std::string decode_with_placeholders(const Tokenizer& tokenizer, std::span<const TokenId> ids);

} // namespace fvlm
