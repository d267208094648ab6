/* YUV4MPEG2 files in 4:4:4, frames of one size one after the other. */
#include "common.h"

#include <stdint.h>

struct stream {
  int64_t width, height, begin, frames;
  double frame_seconds;
};

static int64_t frame_bytes(const struct stream* s) {
  return 6 + 3 * s->width * s->height;
}

static int read_at(const fvlm_video_file* file, int64_t offset, void* into, int64_t count) {
  return file->read(file->context, (uint64_t)offset, into, (uint64_t)count);
}

static fvlm_status open_stream(const fvlm_video_query* query, const fvlm_video_file* file, struct stream* s,
                               fvlm_error* error) {
  char text[129] = "";
  long numerator = 0, denominator = 0;
  const size_t length = file->size < 128 ? (size_t)file->size : 128;
  if (file->stop(file->context)) return fvlm_fail(error, FVLM_ERROR_DATA, "stopped");
  if (read_at(file, 0, text, (int64_t)length)) return fvlm_fail(error, FVLM_ERROR_DEVICE, "the file cannot be read");
  const char* end = strchr(text, '\n');
  if (!end || strncmp(text, "YUV4MPEG2 ", 10) != 0) return fvlm_fail(error, FVLM_ERROR_DATA, "no YUV4MPEG2 file");
  for (const char* word = strchr(text, ' '); word && word < end; word = strchr(word + 1, ' ')) {
    char* rest = NULL;
    if (word[1] == 'W') s->width = strtol(word + 2, NULL, 10);
    if (word[1] == 'H') s->height = strtol(word + 2, NULL, 10);
    if (word[1] == 'F') numerator = strtol(word + 2, &rest, 10);
    if (rest && *rest == ':') denominator = strtol(rest + 1, NULL, 10);
  }
  int small = s->width > 0 && s->height > 0 && s->height <= query->most_pixels / s->width;
#ifdef SABOTAGE_IGNORES_MOST_PIXELS
  small = s->width > 0 && s->height > 0 && s->height <= (1 << 24) / s->width;
#endif
  if (!small || numerator <= 0 || denominator <= 0)
    return fvlm_fail(error, FVLM_ERROR_DATA, "%lld x %lld pixels", (long long)s->width, (long long)s->height);
  s->frame_seconds = (double)denominator / (double)numerator;
  s->begin = end - text + 1;
  s->frames = ((int64_t)file->size - s->begin) / frame_bytes(s);
  return s->frames > 0 ? FVLM_OK : fvlm_fail(error, FVLM_ERROR_DATA, "no frame");
}

static uint8_t clip(double value) {
  return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value + 0.5);
}

static void to_rgb(const uint8_t* yuv, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i) {
    const double y = (yuv[i] - 16) * 255.0 / 219, u = yuv[pixels + i] - 128, v = yuv[2 * pixels + i] - 128;
    rgb[3 * i] = clip(y + 1.596 * v);
    rgb[3 * i + 1] = clip(y - 0.392 * u - 0.813 * v);
    rgb[3 * i + 2] = clip(y + 2.017 * u);
  }
}

static void supports(const fvlm_video_query* query, fvlm_support* support) {
  const int yes =
      FVLM_HAS(query, most_pixels) && query->format && strcmp(query->format, "y4m") == 0 && query->most_pixels > 0;
  fvlm_answer(support, yes, "%s", yes ? "plain frames" : "y4m files alone");
}

static fvlm_status probe(fvlm_instance* instance, const fvlm_video_query* query, const fvlm_video_probe* a,
                         fvlm_error* error) {
  (void)instance;
  NEED(query, most_pixels, error);
  NEED(a, height, error);
  struct stream s = {0};
  const fvlm_status status = open_stream(query, a->file, &s, error);
  if (status != FVLM_OK) return status;
  *a->seconds = (double)s.frames * s.frame_seconds;
  *a->width = s.width;
  *a->height = s.height;
  return FVLM_OK;
}

static fvlm_status show(const struct stream* s, const fvlm_video_decode* a, uint8_t* yuv, uint8_t* rgb,
                        fvlm_error* error) {
  int64_t held = -1;
  for (int64_t i = 0; i < a->time_count; ++i) {
    int64_t frame = (int64_t)(a->times[i] / s->frame_seconds + 1e-6);
#ifdef SABOTAGE_SHOWS_THE_NEXT
    ++frame;
#endif
    if (frame >= s->frames) frame = s->frames - 1;
#ifndef SABOTAGE_NEVER_STOPS
    if (a->file->stop(a->file->context)) return fvlm_fail(error, FVLM_ERROR_DATA, "stopped");
#endif
    if (frame != held) {
      if (read_at(a->file, s->begin + frame * frame_bytes(s), yuv, frame_bytes(s)))
        return fvlm_fail(error, FVLM_ERROR_DEVICE, "the file cannot be read");
      if (memcmp(yuv, "FRAME\n", 6) != 0) return fvlm_fail(error, FVLM_ERROR_DATA, "frame %lld", (long long)frame);
      to_rgb(yuv + 6, s->width * s->height, rgb);
    }
    held = frame;
    const fvlm_video_picture picture = {sizeof picture, i, s->width, s->height, 3 * s->width, rgb};
    if (a->picture(a->context, &picture)) return fvlm_fail(error, FVLM_ERROR_DATA, "stopped");
  }
  const double end = (double)s->frames * s->frame_seconds, last = a->time_count ? a->times[a->time_count - 1] : 0;
  *a->seconds = end < last ? end : last;
#ifdef SABOTAGE_HIDES_THE_END
  *a->seconds = last;
#endif
  return FVLM_OK;
}

static fvlm_status decode(fvlm_instance* instance, const fvlm_video_query* query, const fvlm_video_decode* a,
                          fvlm_error* error) {
  (void)instance;
  NEED(query, most_pixels, error);
  NEED(a, seconds, error);
  struct stream s = {0};
  fvlm_status status = open_stream(query, a->file, &s, error);
  if (status != FVLM_OK) return status;
  uint8_t* memory = (uint8_t*)malloc((size_t)(2 * frame_bytes(&s)));
  if (!memory) return fvlm_fail(error, FVLM_ERROR_MEMORY, "no memory for a frame");
  status = show(&s, a, memory, memory + frame_bytes(&s), error);
  free(memory);
  return status;
}

static const fvlm_video_v1 video = {{sizeof video, create_instance, destroy_instance}, supports, probe, decode};

PLUGIN("video", FVLM_VIDEO_KIND, video)
