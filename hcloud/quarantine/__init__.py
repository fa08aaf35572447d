"""What fails by a defect of our own is set apart, reported and tried again; everything else goes on."""
