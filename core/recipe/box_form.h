// Ways in which models write a place in an image: what its coordinates count, and what stands around them.
#pragma once
#include <array>
#include <cstddef>

namespace fvlm::plan {

enum class BoxForm { pixels, norm1000, norm1000_yx, norm1, loc, qwen2_vl, internvl };

struct NamedBoxForm {
  BoxForm form;
  const char *name, *is;
};

// In the order of BoxForm.
inline constexpr std::array<NamedBoxForm, 7> box_forms{
    {{BoxForm::pixels, "pixels",
      "`[x1, y1, x2, y2]` in pixels of the image as its processor has resized it (Qwen2.5-VL)"},
     {BoxForm::norm1000, "norm1000",
      "`[x1, y1, x2, y2]` from 0 to 1000 across the image (Qwen3-VL, Qwen3.5, GLM-4.1V)"},
     {BoxForm::norm1000_yx, "norm1000_yx", "the same as `[y1, x1, y2, x2]` (Gemma 4)"},
     {BoxForm::norm1, "norm1", "`[0.125, 0.500, 0.375, 1.000]`, from 0 to 1 across the image"},
     {BoxForm::loc, "loc", "`<loc0512><loc0128><loc1023><loc0384>`, y before x, from 0 to 1023 (PaliGemma)"},
     {BoxForm::qwen2_vl, "qwen2_vl",
      "`<|box_start|>(x1,y1),(x2,y2)<|box_end|>` from 0 to 1000, and names between `<|object_ref_start|>` and "
      "`<|object_ref_end|>`"},
     {BoxForm::internvl, "internvl",
      "`<box>[[x1, y1, x2, y2]]</box>` from 0 to 1000, and names between `<ref>` and `</ref>`"}}};

constexpr const char* name_of(BoxForm form) {
  return box_forms[static_cast<std::size_t>(form)].name;
}

} // namespace fvlm::plan
