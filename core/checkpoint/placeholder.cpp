// checkpoint part
