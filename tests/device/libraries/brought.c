int brought(void) {
  return 0;
}
