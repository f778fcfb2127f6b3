"""What every room uses: errors, validated values, files, progress, the machine."""
