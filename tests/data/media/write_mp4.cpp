#include "data/media/write_mp4.h"

#include "base/error.h"

#include <fmt/format.h>

#include <cstring>

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
}

namespace fvlm {
namespace {

int checked(const char* doing, int code) {
  if (code >= 0) return code;
  char text[AV_ERROR_MAX_STRING_SIZE] = "";
  av_strerror(code, text, sizeof text);
  throw Error(ErrorKind::internal, fmt::format("an mp4 file cannot be written: {}: {}", doing, text));
}

template <class Object>
Object* required(Object* object) {
  if (!object) throw Error(ErrorKind::internal, "an mp4 file cannot be written: out of memory, or no MPEG-4 encoder");
  return object;
}

// A file in memory.
struct Output {
  std::string bytes;
  size_t at = 0;

  static int write(void* self, uint8_t* from, int count) {
    auto& output = *static_cast<Output*>(self);
    const auto size = static_cast<size_t>(count);
    if (output.bytes.size() < output.at + size) output.bytes.resize(output.at + size);
    std::memcpy(output.bytes.data() + output.at, from, size);
    output.at += size;
    return count;
  }
  static int64_t seek(void* self, int64_t offset, int whence) {
    auto& output = *static_cast<Output*>(self);
    const auto size = static_cast<int64_t>(output.bytes.size());
    if (whence == AVSEEK_SIZE) return size;
    if (whence == SEEK_CUR) offset += static_cast<int64_t>(output.at);
    if (whence == SEEK_END) offset += size;
    output.at = static_cast<size_t>(offset);
    return offset;
  }
};

class Writer {
 public:
  Writer(int width, int height, const Mp4Form& form) {
    av_log_set_level(AV_LOG_ERROR);
    constexpr int buffer_bytes = 1 << 16;
    io_ = required(avio_alloc_context(static_cast<unsigned char*>(av_malloc(buffer_bytes)), buffer_bytes, 1, &output_,
                                      nullptr, Output::write, Output::seek));
    checked("the format", avformat_alloc_output_context2(&format_, nullptr, "mp4", nullptr));
    format_->pb = io_;
    format_->flags |= AVFMT_FLAG_BITEXACT;
    const AVCodec* encoder = required(avcodec_find_encoder(AV_CODEC_ID_MPEG4));
    codec_ = required(avcodec_alloc_context3(encoder));
    codec_->width = width;
    codec_->height = height;
    codec_->pix_fmt = AV_PIX_FMT_YUV420P;
    codec_->time_base = {1, form.frames_per_second};
    codec_->framerate = {form.frames_per_second, 1};
    codec_->gop_size = form.key_every;
    codec_->max_b_frames = form.between;
    codec_->flags |= AV_CODEC_FLAG_QSCALE | AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
    codec_->global_quality = form.quality * FF_QP2LAMBDA;
    codec_->thread_count = 1;
    checked("the encoder", avcodec_open2(codec_, encoder, nullptr));
    stream_ = required(avformat_new_stream(format_, nullptr));
    stream_->time_base = codec_->time_base;
    checked("the stream", avcodec_parameters_from_context(stream_->codecpar, codec_));
    if (form.quarter_turns != 0) turn(form.quarter_turns);
    AVDictionary* options = nullptr;
    if (form.fragmented) av_dict_set(&options, "movflags", "frag_keyframe+empty_moov", 0);
    const int code = avformat_write_header(format_, &options);
    av_dict_free(&options);
    checked("the header", code);
    frame_ = required(av_frame_alloc());
    frame_->format = codec_->pix_fmt;
    frame_->width = width;
    frame_->height = height;
    checked("a frame", av_frame_get_buffer(frame_, 0));
    packet_ = required(av_packet_alloc());
    scaler_ = required(sws_getContext(width, height, AV_PIX_FMT_RGB24, width, height, AV_PIX_FMT_YUV420P,
                                      SWS_BICUBIC | SWS_ACCURATE_RND, nullptr, nullptr, nullptr));
  }
  ~Writer() {
    sws_freeContext(scaler_);
    av_packet_free(&packet_);
    av_frame_free(&frame_);
    avcodec_free_context(&codec_);
    avformat_free_context(format_);
    if (io_) av_freep(&io_->buffer);
    avio_context_free(&io_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void add(const Image& image, int64_t number) {
    checked("a frame", av_frame_make_writable(frame_));
    const uint8_t* const planes[1] = {image.rgb.data()};
    const int strides[1] = {static_cast<int>(image.width * 3)};
    sws_scale(scaler_, planes, strides, 0, frame_->height, frame_->data, frame_->linesize);
    frame_->pts = number;
    encode(frame_);
  }

  std::string finish() {
    encode(nullptr);
    checked("the end", av_write_trailer(format_));
    avio_flush(io_);
    return std::move(output_.bytes);
  }

 private:
  void turn(int quarter_turns) {
    std::array<int32_t, 9> matrix{};
    av_display_rotation_set(matrix.data(), 90.0 * quarter_turns);
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(60, 30, 100)
    AVCodecParameters& to = *stream_->codecpar;
    AVPacketSideData* data = av_packet_side_data_new(&to.coded_side_data, &to.nb_coded_side_data,
                                                     AV_PKT_DATA_DISPLAYMATRIX, sizeof matrix, 0);
    std::memcpy(required(data)->data, matrix.data(), sizeof matrix);
#else
    std::memcpy(required(av_stream_new_side_data(stream_, AV_PKT_DATA_DISPLAYMATRIX, sizeof matrix)), matrix.data(),
                sizeof matrix);
#endif
  }

  void encode(const AVFrame* frame) {
    checked("encoding", avcodec_send_frame(codec_, frame));
    while (true) {
      const int code = avcodec_receive_packet(codec_, packet_);
      if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return;
      checked("encoding", code);
      if (packet_->duration == 0) packet_->duration = 1;
      av_packet_rescale_ts(packet_, codec_->time_base, stream_->time_base);
      packet_->stream_index = stream_->index;
      checked("a packet", av_interleaved_write_frame(format_, packet_));
    }
  }

  Output output_;
  AVIOContext* io_ = nullptr;
  AVFormatContext* format_ = nullptr;
  AVCodecContext* codec_ = nullptr;
  AVStream* stream_ = nullptr;
  AVFrame* frame_ = nullptr;
  AVPacket* packet_ = nullptr;
  SwsContext* scaler_ = nullptr;
};

} // namespace

std::string write_mp4(std::span<const Image> frames, const Mp4Form& form) {
  if (frames.empty()) throw Error(ErrorKind::internal, "an mp4 file without frames cannot be written");
  const Image& first = frames.front();
  Writer writer(static_cast<int>(first.width), static_cast<int>(first.height), form);
  for (size_t i = 0; i < frames.size(); ++i) {
    if (frames[i].width != first.width || frames[i].height != first.height || first.width % 2 || first.height % 2)
      throw Error(ErrorKind::internal,
                  fmt::format("frame {} of an mp4 file has {} x {} pixels", i, frames[i].width, frames[i].height));
    writer.add(frames[i], static_cast<int64_t>(i));
  }
  return writer.finish();
}

} // namespace fvlm
