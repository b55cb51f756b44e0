"""What the HTML pages share: a server for localhost, data as scripts, thumbnails, maps, and assets."""
