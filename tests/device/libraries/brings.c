int brought(void);

int brings(void) {
  return brought();
}
