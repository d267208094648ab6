#include "base/error.h"
#include "data/samples/sample_reader.h"

namespace fvlm {

void SampleReader::time_video(const Shard&, Sample&) const {
  throw Error(ErrorKind::data, "KEY.mp4 needs a video decoder, and there is none")
      .advise("`fvlm-engine plugin list` says why");
}

void SampleReader::decode_video(const Shard&, const Sample&, const TakeFrame&) const {}

} // namespace fvlm
